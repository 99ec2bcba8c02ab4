// Package duration parses durations as people write them in files: 500ms, 24h, 7d. It refuses a number alone,
// because its unit is unknown.
package duration

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// Hint describes the syntax of Parse.
	Hint = "want a duration with its unit, such as 500ms, 10m, 24h or 7d"
	// Pattern is the syntax of Parse, as a regular expression for JSON Schema.
	Pattern = `^([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$`
)

// Day is 24 hours, even when clocks change.
const Day = 24 * time.Hour

const maxDays = int64(math.MaxInt64 / Day)

// ErrInvalid is Hint as an error.
var ErrInvalid = errors.New(Hint)

var shape = regexp.MustCompile(Pattern)

// Parse parses a text that matches Pattern. It also accepts a minus sign, so that the caller can refuse a negative
// duration with its own message.
func Parse(text string) (time.Duration, error) {
	if length, isNegative := strings.CutPrefix(text, "-"); isNegative {
		positive, err := parse(length)
		return -positive, err
	}
	return parse(text)
}

func parse(text string) (time.Duration, error) {
	if text == "" || !shape.MatchString(text) {
		return 0, ErrInvalid
	}
	before, after, hasDays := strings.Cut(text, "d")
	if !hasDays {
		return parseHours(text)
	}
	days, err := strconv.ParseInt(before, 10, 64)
	if err != nil || days > maxDays {
		return 0, ErrInvalid
	}
	if after == "" {
		return time.Duration(days) * Day, nil
	}
	rest, err := parseHours(after)
	if err != nil || rest > math.MaxInt64-time.Duration(days)*Day {
		return 0, ErrInvalid
	}
	return time.Duration(days)*Day + rest, nil
}

func parseHours(text string) (time.Duration, error) {
	duration, err := time.ParseDuration(text)
	if err != nil {
		return 0, ErrInvalid
	}
	return duration, nil
}

// Format writes a duration in the shortest form that Parse accepts: 30m, 24h, 7d.
func Format(length time.Duration) string {
	if length >= 2*Day && length%Day == 0 {
		return strconv.FormatInt(int64(length/Day), 10) + "d"
	}
	text := length.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

var errInstant = errors.New("want how long ago, such as 2h or 7d, or a time, such as 2026-01-31, \"2026-01-31 15:04\" or 2026-01-31T15:04:05Z")

// Instant parses an age such as 2h, which it subtracts from now, or a time. A time without a zone is in location.
func Instant(text string, now time.Time, location *time.Location) (time.Time, error) {
	if ago, err := Parse(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, location); err == nil && !at.IsZero() {
			return at, nil
		}
	}
	return time.Time{}, errInstant
}
