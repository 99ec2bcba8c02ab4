//go:build failpoints

package failpoint

import (
	"slices"
	"strings"
	"testing"
)

// acts returns those of the first ten hits of a point at which it acts, and its action.
func acts(t *testing.T, armed string, p Point) (hits []int, does action) {
	t.Helper()
	armory, err := parse(armed)
	if err != nil {
		t.Fatal(err)
	}
	for hit := range 10 {
		if action, now := armory.hit(p); now {
			hits, does = append(hits, hit+1), action
		}
	}
	return hits, does
}

func TestAPointActsAtTheHitItIsArmedFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		armed string
		hits  []int
		does  action
	}{
		{"", nil, ""},
		{"after_reply=kill", nil, ""},
		{"before_send=kill", []int{1}, kill},
		{"before_send=stop@3", []int{3}, stop},
		{"before_send=hold@10", []int{10}, hold},
		{"before_send=hang@11", nil, ""},
		{"before_send=fail@*", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, fail},
		{"after_reply=kill,before_send=panic@2", []int{2}, blow},
	} {
		if hits, does := acts(t, test.armed, BeforeSend); !slices.Equal(hits, test.hits) || does != test.does {
			t.Errorf("%q: before_send does %q at %v, want %q at %v", test.armed, does, hits, test.does, test.hits)
		}
	}
}

func TestPointsAreCountedApart(t *testing.T) {
	t.Parallel()
	armory, err := parse("before_send=kill@2,after_reply=stop@2")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Point{BeforeSend, AfterReply} {
		if _, now := armory.hit(p); now {
			t.Errorf("%s acts at its first hit", p)
		}
	}
	if does, now := armory.hit(AfterReply); !now || does != stop {
		t.Errorf("after_reply does %q, %t at its second hit", does, now)
	}
}

// A fault that is never injected would show nothing.
func TestWhatArmsNothingIsRefused(t *testing.T) {
	t.Parallel()
	for armed, says := range map[string]string{
		"before_send":          "is not point=action",
		"before_send=explode":  "no action",
		"before_send=kill@0":   "a hit from 1",
		"before_send=kill@-1":  "a hit from 1",
		"before_send=kill@all": "a hit from 1",
		"before_send=kill,":    "is not point=action",
		"before_sned=kill":     "no point",
		"=kill":                "no point",
	} {
		if _, err := parse(armed); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want an error that says %q", armed, err, says)
		}
	}
}
