// Package filedrop leaves each intent as a file in a folder that another
// program empties. The file's name is the intent's idempotency key. An attempt
// in doubt is repeated, perhaps after the file was taken, so that program must
// know the names that it had for as long as the tool's ttl.
package filedrop

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agentoutbox/drainer/dispatch"
)

// Kind registers the adapter. A file that is there already is recognised, so a
// tool may promise that repeating a call is safe.
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "filedrop",
		Classes:  []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.KeyIdempotent, dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Settings is the provider's `filedrop` block.
type Settings struct {
	Folder string `yaml:"folder" jsonschema:"required" jsonschema_description:"Where files are left. It must exist."`
}

// Tool is a tool's `filedrop` block.
type Tool struct {
	Suffix string `yaml:"suffix" jsonschema:"default=.json" jsonschema_description:"What the names of this tool's files end in."`
}

// Adapter leaves files in one folder.
type Adapter struct {
	folder   string
	suffixes map[string]string // by operation
}

// New checks the settings. It looks at no folder yet: a configuration can be
// checked where the folder is not.
func New(spec dispatch.Spec) (*Adapter, error) {
	var settings Settings
	problems := []error{spec.Settings.Decode(&settings)}
	if settings.Folder == "" {
		problems = append(problems, errors.New("folder is missing"))
	}
	adapter := &Adapter{folder: settings.Folder, suffixes: map[string]string{}}
	for operation, declared := range spec.Tools {
		tool := Tool{Suffix: ".json"}
		err := declared.Settings.Decode(&tool)
		if err == nil && tool.Suffix != filepath.Base(tool.Suffix) {
			err = errors.New("suffix: must not name a folder")
		}
		if err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
		adapter.suffixes[operation] = tool.Suffix
	}
	return adapter, errors.Join(problems...)
}

// Dispatch writes the payload aside and then gives it its name in one step, so
// that no reader ever sees half a file.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	suffix, known := a.suffixes[request.Tuple.Operation()]
	if !known {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	if ctx.Err() != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "cancelled"}
	}
	draft, err := a.draft(request.Payload)
	if err != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "folder_unwritable"}
	}
	defer os.Remove(draft)
	name := request.IdempotencyKey + suffix
	path := filepath.Join(a.folder, name)
	switch err := os.Link(draft, path); {
	case err == nil:
		return a.kept(dispatch.Result{Outcome: dispatch.Completed, ProviderRef: name})
	case errors.Is(err, fs.ErrExist):
		return a.kept(recognise(path, name, request.Payload))
	default:
		// On a network file system even a failed link may have been made.
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "folder_unwritable"}
	}
}

// kept holds a success back until the file's name would survive a power cut.
func (a *Adapter) kept(result dispatch.Result) dispatch.Result {
	folder, err := os.Open(a.folder)
	if err == nil {
		err = errors.Join(folder.Sync(), folder.Close())
	}
	if err != nil && result.Outcome == dispatch.Completed {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "folder_unsynced"}
	}
	return result
}

// draft writes the payload to a file that has no name that counts yet.
func (a *Adapter) draft(payload []byte) (path string, err error) {
	file, err := os.CreateTemp(a.folder, ".draft-*")
	if err != nil {
		return "", err
	}
	_, writeErr := file.Write(payload)
	err = errors.Join(writeErr, file.Sync(), file.Close())
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return file.Name(), err
}

// recognise tells a repetition from another payload under the same key.
func recognise(path, name string, payload []byte) dispatch.Result {
	stored, err := os.ReadFile(path)
	switch {
	case err != nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "folder_unreadable"}
	case !bytes.Equal(stored, payload):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload_mismatch"}
	}
	return dispatch.Result{Outcome: dispatch.Completed, Replayed: true, ProviderRef: name}
}
