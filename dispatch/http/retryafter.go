package http

import (
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
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// parseSeconds also takes a fraction, which some providers send, and rounds it
// up to the next nanosecond: late is allowed, early is not.
func parseSeconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if math.IsInf(seconds, 1) {
		return maxRetryAfter, true
	}
	if err != nil {
		return 0, false
	}
	if seconds >= maxRetryAfter.Seconds() {
		return maxRetryAfter, true
	}
	return time.Duration(math.Ceil(seconds * float64(time.Second))), true
}
