package cli

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker for releases, as `make image` does.
var version string

type buildVersion struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree that differs from Revision
	Go       string `json:"go"`
}

func newVersion(options *options) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print which drainer this is",
		Example: "  drainer version -o json",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			build := currentVersion()
			heading := []string{"VERSION", "REVISION", "GO"}
			return options.print(command, build, heading, [][]string{{build.Version, build.Revision, build.Go}})
		},
	}
}

func currentVersion() buildVersion {
	current := buildVersion{Version: "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		current.Version, current.Go = info.Main.Version, info.GoVersion
		for _, setting := range info.Settings {
			switch setting.Key {
			case "vcs.revision":
				current.Revision = setting.Value
			case "vcs.modified":
				current.Modified = setting.Value == "true"
			}
		}
	}
	if version != "" {
		current.Version = version
	}
	return current
}
