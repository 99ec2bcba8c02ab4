package cli

import (
	"log"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// newLogger writes for whoever reads: a person at a terminal, or a collector.
// Lines may wait in memory until flush.
func newLogger() (logger *slog.Logger, flush func()) {
	lines := newLogWriter(os.Stderr)
	logger = slog.New(slog.NewJSONHandler(lines, nil))
	if term.IsTerminal(int(os.Stderr.Fd())) {
		logger = slog.New(slog.NewTextHandler(lines, nil))
	}
	quiet(logger)
	return logger, lines.Close
}

// quiet takes the standard logger from the libraries that write to it.
func quiet(logger *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(wordless{logger})
}

// wordless is where libraries log of their own accord. It does not repeat them:
// net/http quotes what a provider sends over an idle connection, and that may
// be an answer.
type wordless struct{ log *slog.Logger }

func (w wordless) Write(line []byte) (int, error) {
	w.log.Warn("a library has logged something, which is not shown because it may be secret", "octets", len(line))
	return len(line), nil
}
