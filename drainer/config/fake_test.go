package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

type fakeSettings struct {
	Token   string            `yaml:"token"`
	Wait    time.Duration     `yaml:"wait"`
	Limit   int8              `yaml:"limit"`
	Strict  bool              `yaml:"strict"`
	Labels  map[string]string `yaml:"labels"`
	Allowed []string          `yaml:"allowed"`
	Extra   any               `yaml:"extra"`
	Level   *level            `yaml:"level"`
}

type fakeTool struct {
	Path string `yaml:"path" jsonschema:"required"`
}

// level refuses with a message that repeats the value, as careless types do.
type level struct{ text string }

func (l *level) UnmarshalText(text []byte) error {
	if l.text = string(text); l.text != "high" && l.text != "low" {
		return fmt.Errorf("unknown level %s", text)
	}
	return nil
}

type fakeAdapter struct {
	settings fakeSettings
	paths    map[string]string
	timeout  time.Duration
}

func (*fakeAdapter) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Completed}
}

func newFake(spec dispatch.Spec) (dispatch.Adapter, error) {
	adapter := &fakeAdapter{paths: map[string]string{}, timeout: spec.Timeout}
	problems := []error{spec.Settings.Decode(&adapter.settings)}
	if adapter.settings.Token == "leak me" {
		problems = append(problems, fmt.Errorf("token %q is refused", adapter.settings.Token))
	}
	for operation, tool := range spec.Tools {
		var settings fakeTool
		err := tool.Settings.Decode(&settings)
		if err == nil && settings.Path == "" {
			err = errors.New("path is missing")
		}
		if err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
		adapter.paths[operation] = settings.Path
	}
	return adapter, errors.Join(problems...)
}

func fakeRegistry(t testing.TB) dispatch.Registry {
	t.Helper()
	registry, err := dispatch.NewRegistry(
		dispatch.Kind{Name: "fake", New: newFake, Settings: fakeSettings{}, Tool: fakeTool{}},
		dispatch.Kind{Name: "other", Classes: []dispatch.Class{dispatch.ReadOnly, dispatch.NaturallyIdempotent, dispatch.NonIdempotent}, New: newFake, Settings: fakeSettings{}, Tool: fakeTool{}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

func fakeSecrets() *secrets {
	environment := map[string]string{
		"DATABASE_URL": "postgres://app:hunter2@db/outbox",
		"TOKEN":        "leak me",
		"WAIT":         "90s",
		"EMPTY":        "",
		"NESTED":       "${env:TOKEN}",
	}
	files := map[string]string{
		"/run/secrets/token": "s3cret\n",
		"/run/secrets/two":   "line\n\n",
		"/run/secrets/crlf":  "s3cret\r\n",
		"/run/secrets/empty": "\n",
	}
	return &secrets{
		lookupEnv: func(name string) (string, bool) {
			value, set := environment[name]
			return value, set
		},
		readFile: func(path string) ([]byte, error) {
			content, exists := files[path]
			if !exists {
				return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
			}
			return []byte(content), nil
		},
	}
}
