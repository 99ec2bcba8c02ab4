package filedrop_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/examples/custom-adapter/filedrop"
)

func TestFiledropConforms(t *testing.T) {
	const passive = "a folder refuses nothing and does not answer"
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind:  filedrop.Kind(),
		Start: startFolder,
		Cannot: map[dispatchtest.Situation]string{
			dispatchtest.Throttling: passive,
			dispatchtest.Rejecting:  passive,
			dispatchtest.Severing:   passive,
			dispatchtest.Busy:       passive,
			dispatchtest.Silent:     passive,
			dispatchtest.Babbling:   passive,
			dispatchtest.Forbidden:  "files need no network",
		},
	})
}

func startFolder(t *testing.T) dispatchtest.Counterpart {
	folder := filepath.Join(t.TempDir(), "drop")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	return dispatchtest.Counterpart{
		Settings: "folder: " + folder,
		Payload:  json.RawMessage(`{"parcel": 7}`),
		Exact:    json.RawMessage(`{"parcel": 9007199254740993}`),
		Received: func() []dispatchtest.Message { return filesIn(t, folder) },
		Enter: func(situation dispatchtest.Situation) {
			from, to := folder+".gone", folder
			if situation == dispatchtest.Unreachable {
				from, to = to, from
			}
			if err := os.Rename(from, to); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		},
	}
}

// filesIn returns the files in the folder as messages. The key is the name without the suffix.
func filesIn(t *testing.T, folder string) (messages []dispatchtest.Message) {
	entries, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		t.Error(err)
	}
	for _, path := range entries {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		key := strings.TrimSuffix(filepath.Base(path), ".json")
		messages = append(messages, dispatchtest.Message{Key: key, Body: body})
	}
	return messages
}
