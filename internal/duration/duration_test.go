package duration

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// tooLong has the syntax of a duration; only its number is too large.
var tooLong = []string{"999999999d", "106751d99h", "9223372037s"}

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
		if got, err := Parse("-" + text); got != -want || err != nil {
			t.Errorf("Parse(-%q) = %v, %v; want %v", text, got, err, -want)
		}
		got, err := Parse(text)
		if got != want || err != nil {
			t.Errorf("Parse(%q) = %v, %v; want %v", text, got, err, want)
		}
		if !pattern.MatchString(text) {
			t.Errorf("the schema refuses %q", text)
		}
	}
	for _, text := range []string{"", "0", "--5s", "-", "+5s", ".5s", "1.s", "1d+2h", "+1d", "1e3s", "1_0s", "9223372037s", "30", "1w", "d", "1.5d", "1d-2h", "12h1d", "999999999d", "106751d99h", "ten minutes"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %v; want an error", text, got)
		}
		if pattern.MatchString(text) && text != "" && !slices.Contains(tooLong, text) {
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

// Parse reads each text that the schema permits, unless it is too long, and otherwise only such a text after a
// minus. It reads every text that Format writes.
func FuzzALengthOfTimeIsReadAsTheSchemaSays(f *testing.F) {
	for _, seed := range append(tooLong, "", "0", "0s", "-5s", "+5s", ".5s", "1.s", "1d+2h", "1h1h", "7d", "1.5d", "106751d23h47m16.854775807s", "106751d23h47m16.854775808s",
		"9223372036854775807ns", "0.0000000000000000000001ns", "1µs", "1μs", "1us", "٣s", "1 s", "1S", "0x1s", "1e9s", "d", "00000000000000000000001d") {
		f.Add(seed, int64(len(seed))*1e9)
	}
	f.Add("", int64(1<<63-1))
	pattern := regexp.MustCompile(Pattern)
	f.Fuzz(func(t *testing.T, text string, length int64) {
		got, err := Parse(text)
		plain, isNegative := strings.CutPrefix(text, "-")
		if got < 0 && !isNegative || got > 0 && isNegative || err == nil && !pattern.MatchString(plain) {
			t.Errorf("%q is read as %s", text, got)
		}
		if err != nil && text != "" && pattern.MatchString(text) && len(text) <= 6 {
			t.Errorf("%q: %v", text, err)
		}
		if length := time.Duration(length); length >= 0 {
			if back, err := Parse(Format(length)); err != nil || back != length {
				t.Errorf("%d is written %s, and read as %d, %v", length, Format(length), back, err)
			}
		}
	})
}
