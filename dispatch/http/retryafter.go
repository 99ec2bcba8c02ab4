package http

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds a provider's wish: whoever asks for more than a year
// has made a mistake.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter reads the Retry-After header (RFC 9110, 10.2.3): seconds, or any
// of the three date forms. A date is measured against the response's own
// Date, so that the two clocks need not agree. 0 means no wish, or one that
// cannot be understood.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if wait, ok := parseSeconds(text); ok {
		return wait
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(dateOf(header, now)), 0), maxRetryAfter)
}

// dateOf is when the provider answered, by its own clock if it says so.
func dateOf(header http.Header, now time.Time) time.Time {
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
	return secondsOf(text)
}

// secondsOf takes a number that is too large to be one for infinity.
func secondsOf(text string) (time.Duration, bool) {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return seconds(number), true
}

// seconds is a number of them within 0 and maxRetryAfter, rounded up to the
// next nanosecond: late is allowed, early is not.
func seconds(number float64) time.Duration {
	switch {
	case number >= maxRetryAfter.Seconds():
		return maxRetryAfter
	case number > 0:
		return time.Duration(math.Ceil(number * float64(time.Second)))
	}
	return 0 // NaN as well
}
