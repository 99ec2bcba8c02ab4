package duration

import (
	"regexp"
	"testing"
	"time"
)

func TestDurationsHaveAUnit(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(Pattern)
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond,
		"10m":   10 * time.Minute,
		"1h30m": 90 * time.Minute,
		"1.5s":  1500 * time.Millisecond,
		"7d":    7 * 24 * time.Hour,
		"1d12h": 36 * time.Hour,
	} {
		got, err := Parse(text)
		if got != want || err != nil {
			t.Errorf("Parse(%q) = %v, %v; want %v", text, got, err, want)
		}
		if !pattern.MatchString(text) {
			t.Errorf("the schema refuses %q", text)
		}
	}
	for _, text := range []string{"", "30", "1w", "d", "-1d", "1.5d", "1d-2h", "12h1d", "999999999d", "106751d99h", "ten minutes"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %v; want an error", text, got)
		}
		if pattern.MatchString(text) && text != "" && text != "999999999d" && text != "106751d99h" {
			t.Errorf("the schema accepts %q", text)
		}
	}
}

func TestFormatIsShortAndReadBack(t *testing.T) {
	t.Parallel()
	for length, want := range map[time.Duration]string{
		0:                       "0s",
		500 * time.Millisecond:  "500ms",
		20 * time.Second:        "20s",
		30 * time.Minute:        "30m",
		10*time.Minute + 5e9:    "10m5s",
		24 * time.Hour:          "24h",
		20*time.Hour + 5*60e9:   "20h5m",
		7 * 24 * time.Hour:      "7d",
		49 * time.Hour:          "49h",
		100*24*time.Hour + 30e9: "2400h0m30s",
	} {
		got := Format(length)
		if back, err := Parse(got); got != want || back != length || err != nil {
			t.Errorf("Format(%v) = %q, read back as %v, %v; want %q", length, got, back, err, want)
		}
	}
}
