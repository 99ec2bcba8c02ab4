package log_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/log"
)

func TestLogConforms(t *testing.T) {
	t.Parallel()
	const spoken = "a file does not speak: it takes the line or fails"
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind: log.Kind(),
		Start: func(t *testing.T) dispatchtest.Counterpart {
			path := filepath.Join(t.TempDir(), "intents")
			return dispatchtest.Counterpart{
				Settings: "{to: " + path + ", payload: true}",
				Tool:     "{}",
				Payload:  json.RawMessage(`{"order": "a-long-order-number"}`),
				Exact:    json.RawMessage(`{"a": 123456789012345678901234567890.10}`),
				Received: func() []dispatchtest.Message { return received(t, path) },
				Enter:    func(dispatchtest.Situation) {},
			}
		},
		Cannot: map[dispatchtest.Situation]string{
			dispatchtest.Unreachable: "a file that is open stays so; one that cannot be opened is tried below",
			dispatchtest.Throttling:  spoken,
			dispatchtest.Rejecting:   spoken,
			dispatchtest.Severing:    spoken,
			dispatchtest.Busy:        spoken,
			dispatchtest.Silent:      spoken,
			dispatchtest.Babbling:    spoken,
			dispatchtest.Forbidden:   "it makes no connection",
		},
	})
}

func received(t *testing.T, path string) (messages []dispatchtest.Message) {
	for _, line := range lines(t, path) {
		body, err := json.Marshal(line["payload"])
		if err != nil {
			t.Error(err)
		}
		messages = append(messages, dispatchtest.Message{Key: line["key"].(string), Body: body})
	}
	return messages
}

func lines(t *testing.T, path string) (lines []map[string]any) {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 4<<20)
	for scanner.Scan() {
		decoder := json.NewDecoder(bytes.NewReader(scanner.Bytes()))
		decoder.UseNumber()
		var line map[string]any
		if err := decoder.Decode(&line); err != nil {
			t.Errorf("%.80s: %v", scanner.Text(), err)
		}
		lines = append(lines, line)
	}
	return lines
}

func newAdapter(t *testing.T, settings string) *log.Adapter {
	t.Helper()
	return dispatchtest.Build(t, log.New, spec(settings))
}

func spec(settings string) dispatch.Spec {
	return dispatch.Spec{
		Settings: dispatchtest.Block(settings),
		Tools:    map[string]dispatch.ToolSpec{"charge": {Class: dispatch.NonIdempotent}},
	}
}

var request = dispatch.Request{
	Tuple:          dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "billing/charge", BusinessScope: "invoice_442"},
	IdempotencyKey: "idem_v1_0",
	Payload:        json.RawMessage(`{"card": "canary"}`),
	Attempt:        2,
}

func TestALineTellsThePayloadOnlyIfAsked(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "intents")
		settings := "to: " + path
		if asked {
			settings += "\npayload: true"
		}
		got := newAdapter(t, settings).Dispatch(t.Context(), request)
		if got.Outcome != dispatch.Completed {
			t.Fatalf("got %+v", got)
		}
		want := map[string]any{
			"agent_run_id": "run-001", "step_id": "step-1", "tool_name": "billing/charge", "business_scope": "invoice_442",
			"key": "idem_v1_0", "attempt": json.Number("2"),
		}
		if asked {
			want["payload"] = map[string]any{"card": "canary"}
		}
		written := lines(t, path)
		delete(written[0], "at")
		if len(written) != 1 || !reflect.DeepEqual(written[0], want) {
			t.Errorf("got %v, want %v", written, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v (%v): others could read it", info.Mode(), err)
		}
	}
}

func TestAFileIsAppendedTo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "intents")
	for range 2 {
		newAdapter(t, "to: "+path).Dispatch(t.Context(), request)
	}
	if written := lines(t, path); len(written) != 2 {
		t.Errorf("%d lines", len(written))
	}
}

func TestWhatCannotBeWrittenIsNotSent(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "missing")
	adapter := newAdapter(t, "to: "+filepath.Join(folder, "intents"))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request), dispatch.NotSent, "open")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request), dispatch.Completed, "")
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	full := newAdapter(t, "to: /dev/full")
	dispatchtest.Expect(t, full.Dispatch(t.Context(), request), dispatch.NotSent, "write")
}

func TestALineIsWrittenForAConfiguredToolInTimeOrNotAtAll(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	for want, test := range map[string]struct {
		ctx  context.Context
		tool string
	}{
		"unconfigured_tool": {t.Context(), "log/other"},
		"cancelled":         {over, request.Tuple.ToolName},
	} {
		path := filepath.Join(t.TempDir(), "intents")
		late := request
		late.Tuple.ToolName = test.tool
		got := newAdapter(t, "to: "+path).Dispatch(test.ctx, late)
		if _, err := os.Stat(path); got.Outcome != dispatch.NotSent || got.ErrorClass != want || err == nil {
			t.Errorf("got %+v, want not_sent, %s, and no file", got, want)
		}
	}
}

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{"to: canary/file": "to is neither", "payload: canary": "column 10"} {
		if _, err := log.New(spec(settings)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", settings, err)
		}
	}
	s := spec("")
	s.Tools["charge"] = dispatch.ToolSpec{Settings: dispatchtest.Block("{path: /}")}
	if _, err := log.New(s); err == nil || !strings.Contains(err.Error(), "tool charge") {
		t.Errorf("a setting that a tool does not have: %v", err)
	}
}
