package doctor

import (
	"os"
	"strings"
	"testing"
)

func TestThePageNamesEveryCheck(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(checks(), check{name: "connection"}, check{name: "provider NAME"}) {
		if !strings.Contains(string(page), "\n| "+c.name+" |") {
			t.Errorf("docs/doctor.md has no row for %q", c.name)
		}
	}
}
