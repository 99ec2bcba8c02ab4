package dispatch

import (
	"errors"
	"slices"
	"testing"
)

func TestAnAdaptersNameIsTakenOnce(t *testing.T) {
	t.Parallel()
	registry, err := NewRegistry(Kind{Name: "smtp"}, Kind{Name: "http"})
	if err != nil || !slices.Equal(registry.Names(), []string{"http", "smtp"}) {
		t.Errorf("%v, %v; want both, in alphabetical order", registry.Names(), err)
	}
	if _, err := NewRegistry(Kind{Name: "http"}, Kind{Name: "http"}); err == nil {
		t.Error("two adapters have one name")
	}
}

func TestAToolsErrorNamesTheToolAndKeepsItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("path is missing")
	var err error = &ToolError{Operation: "charge", Err: cause}
	if !errors.Is(err, cause) || err.Error() != "tool charge: path is missing" {
		t.Errorf("%q, of its cause: %v", err, errors.Is(err, cause))
	}
}
