// Package retryafter reads how long a provider wants to be left alone.
package retryafter

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Longest bounds a provider's wish: whoever asks for more than a year
// has made a mistake.
const Longest = 365 * 24 * time.Hour

// Header reads the Retry-After header (RFC 9110, 10.2.3): seconds, or any
// of the three date forms. A date is measured against the response's own
// Date, so that the two clocks need not agree. 0 means no wish, or one that
// cannot be understood.
func Header(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if wait, ok := parseSeconds(text); ok {
		return wait
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(DateOf(header, now)), 0), Longest)
}

// DateOf is when the provider answered, by its own clock if it says so.
func DateOf(header http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		return date
	}
	return now
}

// parseSeconds also takes a fraction, which some providers send.
func parseSeconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	return Seconds(text)
}

// Seconds reads a number of them, between 0 and [Longest]; one that is too
// large to be a number counts as infinity.
func Seconds(text string) (time.Duration, bool) {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return bounded(number), true
}

// bounded is a number of seconds within 0 and Longest, rounded up to the
// next nanosecond: late is allowed, early is not.
func bounded(number float64) time.Duration {
	switch {
	case number >= Longest.Seconds():
		return Longest
	case number > 0:
		return time.Duration(math.Ceil(number * float64(time.Second)))
	}
	return 0 // NaN as well
}
