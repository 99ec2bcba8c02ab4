package config

import (
	"regexp"
	"testing"
	"time"
)

func TestDurationsHaveAUnit(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(durationPattern)
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond,
		"10m":   10 * time.Minute,
		"1h30m": 90 * time.Minute,
		"1.5s":  1500 * time.Millisecond,
		"7d":    7 * 24 * time.Hour,
		"1d12h": 36 * time.Hour,
	} {
		got, err := parseDuration(text)
		if got != want || err != nil {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
		if !pattern.MatchString(text) {
			t.Errorf("the schema refuses %q", text)
		}
	}
	for _, text := range []string{"", "30", "1w", "d", "-1d", "1.5d", "1d-2h", "12h1d", "999999999d", "106751d99h", "ten minutes"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v; want an error", text, got)
		}
		if pattern.MatchString(text) && text != "" && text != "999999999d" && text != "106751d99h" {
			t.Errorf("the schema accepts %q", text)
		}
	}
}
