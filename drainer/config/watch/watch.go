// Package watch notices when the files of a configuration have changed.
//
// It compares their contents again and again. A volume of Kubernetes changes
// when a symlink far above the file is swapped, which a watch on the file would
// miss; and a file that was written anew with the same content is no change.
package watch

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/drainer/config"
)

// Cause is why a configuration is to be read again.
type Cause string

// The causes.
const (
	Signal Cause = "signal" // somebody asks, whatever the files hold
	Change Cause = "change"
)

// Run calls reload when it is asked to, and when files have changed and then
// stayed as they are for an interval: what is half written is not worth reading.
// reload returns the files as it read them, which are watched from then on, so
// that a content which cannot be used is tried once. Run returns when ctx ends.
func Run(ctx context.Context, interval time.Duration, files []config.File, asked <-chan os.Signal, reload func(Cause) []config.File) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var unsteady []config.Version
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
			files, unsteady = reload(Signal), nil
		case <-ticker.C:
			now := versions(files)
			switch {
			case !changed(files, now):
				unsteady = nil
			case !slices.Equal(now, unsteady):
				unsteady = now
			default:
				files, unsteady = reload(Change), nil
			}
		}
	}
}

func versions(files []config.File) []config.Version {
	now := make([]config.Version, len(files))
	for i, file := range files {
		now[i] = file.Current()
	}
	return now
}

func changed(files []config.File, now []config.Version) bool {
	for i, file := range files {
		if now[i] != file.Version {
			return true
		}
	}
	return false
}
