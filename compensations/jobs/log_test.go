package jobs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestRiverIsHeardFromWarningsUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		derive func(*slog.Logger) *slog.Logger
		from   slog.Level
		want   string
	}{
		"plain":                       {func(l *slog.Logger) *slog.Logger { return l }, slog.LevelInfo, "warn error"},
		"with attributes and a group": {func(l *slog.Logger) *slog.Logger { return l.With("queue", "undo").WithGroup("job") }, slog.LevelInfo, "warn error"},
		"where errors alone are kept": {func(l *slog.Logger) *slog.Logger { return l }, slog.LevelError, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var written bytes.Buffer
			messagesOnly := func(_ []string, attr slog.Attr) slog.Attr {
				if attr.Key == slog.MessageKey {
					return attr
				}
				return slog.Attr{}
			}
			handler := slog.NewTextHandler(&written, &slog.HandlerOptions{Level: test.from, ReplaceAttr: messagesOnly})
			log := test.derive(slog.New(quiet{handler}))
			log.Debug("debug")
			log.Info("info")
			log.Warn("warn")
			log.Error("error")
			if got := strings.Join(strings.Fields(strings.ReplaceAll(written.String(), "msg=", "")), " "); got != test.want {
				t.Errorf("heard %q, want %q", got, test.want)
			}
		})
	}
}
