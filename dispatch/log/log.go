// Package log is the adapter for trials. It writes an intent as one line of JSON and does nothing else. The line
// shows which intent would have been sent.
//
// A log does not recognise repetitions, so a repeated intent makes another line.
package log

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

const fileMode = 0o600 // payloads may be secret

// Settings is the provider's `log` block.
type Settings struct {
	To      string `yaml:"to,omitempty" jsonschema:"default=stdout" jsonschema_description:"stdout, stderr, or the absolute path of a file to append to."`
	Payload bool   `yaml:"payload,omitempty" jsonschema_description:"Write the payload, too. Payloads may be secret."`
}

// Tool is a tool's `log` block, which has no settings.
type Tool struct{}

// Kind registers the adapter as "log".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "log",
		Classes:  []dispatch.Class{dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter writes one line for each intent.
type Adapter struct {
	tools    map[string]dispatch.ToolSpec
	settings Settings

	mu   sync.Mutex
	file *os.File // nil until the first line
}

// New builds the adapter, or reports what is wrong with its configuration.
func New(spec dispatch.Spec) (*Adapter, error) {
	a := &Adapter{tools: spec.Tools, settings: Settings{To: "stdout"}}
	problems := []error{adapter.Decode(spec.Settings, &a.settings)}
	if to := a.settings.To; to != "stdout" && to != "stderr" && !filepath.IsAbs(to) {
		problems = append(problems, errors.New("to is neither stdout nor stderr nor an absolute path"))
	}
	for operation, tool := range spec.Tools {
		if err := adapter.Decode(tool.Settings, &Tool{}); err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return a, nil
}

// Dispatch writes one line.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	if _, ok := a.tools[request.Tuple.Operation()]; !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	line, err := a.line(request)
	if err != nil {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "malformed_payload", Unsent: true}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Context(ctx)}
	}
	if err := a.open(); err != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "open"}
	}
	return a.write(line)
}

// Close closes the file.
func (a *Adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil || !a.isFile() {
		return nil
	}
	return a.file.Close()
}

// write writes a whole line, and syncs a file to disk.
func (a *Adapter) write(line []byte) dispatch.Result {
	switch n, err := a.file.Write(line); {
	case err != nil && n == 0:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "write"}
	case err != nil:
		_, _ = io.WriteString(a.file, "\n") // the next line must not begin in the middle of this one
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "write"}
	}
	if a.isFile() && a.file.Sync() != nil {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "sync"}
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

func (a *Adapter) isFile() bool { return a.settings.To != "stdout" && a.settings.To != "stderr" }

func (a *Adapter) open() (err error) {
	if a.file != nil {
		return nil
	}
	switch a.settings.To {
	case "stdout":
		a.file = os.Stdout
	case "stderr":
		a.file = os.Stderr
	default:
		a.file, err = os.OpenFile(a.settings.To, os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
		if err != nil {
			a.file = nil
		}
	}
	return err
}

// record is the content of a line.
type record struct {
	At            time.Time       `json:"at"`
	AgentRunID    string          `json:"agent_run_id"`
	StepID        string          `json:"step_id"`
	ToolName      string          `json:"tool_name"`
	BusinessScope string          `json:"business_scope"`
	Key           string          `json:"key"`
	Attempt       int             `json:"attempt"`
	Payload       json.RawMessage `json:"payload,omitempty"`
}

func (a *Adapter) line(request dispatch.Request) ([]byte, error) {
	record := record{
		At: time.Now().UTC(), Key: request.IdempotencyKey, Attempt: request.Attempt,
		AgentRunID: request.Tuple.AgentRunID, StepID: request.Tuple.StepID,
		ToolName: request.Tuple.ToolName, BusinessScope: request.Tuple.BusinessScope,
	}
	if a.settings.Payload {
		record.Payload = request.Payload
	}
	text, err := json.Marshal(record)
	return append(text, '\n'), err
}

// Destinations returns none, since nothing is sent.
func (a *Adapter) Destinations() []dispatch.Destination { return nil }
