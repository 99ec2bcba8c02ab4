package dispatchtest

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// refusal is an answer without an effect.
type refusal struct {
	status int
	title  string
	wish   wish
}

// wish writes a Retry-After; nil sends none.
type wish func(now time.Time, wait time.Duration) string

var refusals = map[Fault]refusal{
	Throttle:         {http.StatusTooManyRequests, "Too many requests", nil},
	ThrottleFor:      {http.StatusTooManyRequests, "Too many requests", inSeconds},
	ThrottleUntil:    {http.StatusTooManyRequests, "Too many requests", asDate},
	Unavailable:      {http.StatusServiceUnavailable, "Unavailable", nil},
	UnavailableFor:   {http.StatusServiceUnavailable, "Unavailable", inSeconds},
	UnavailableUntil: {http.StatusServiceUnavailable, "Unavailable", asDate},
	Overloaded:       {529, "Overloaded", nil},
	OverloadedFor:    {529, "Overloaded", inSeconds},
	OverloadedUntil:  {529, "Overloaded", asDate},
	Outstanding:      {http.StatusConflict, "A request is outstanding for this Idempotency-Key", inSeconds},
	Taken:            {http.StatusConflict, "This Idempotency-Key was used with another payload", nil},
	Declined:         {http.StatusUnprocessableEntity, "This will not be done", nil},
	ErrorBefore:      {http.StatusInternalServerError, "Something went wrong", nil},
}

func (p *SimulatedProvider) refuse(w http.ResponseWriter, fault Fault) {
	refusal := refusals[fault]
	if refusal.wish != nil {
		// Both headers come from one clock, as the date is read against the other.
		now := time.Now()
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		w.Header().Set("Retry-After", refusal.wish(now, orASecond(p.RetryAfter)))
	}
	writeReply(w, refusal.status, problem(refusal.status, refusal.title))
}

func inSeconds(_ time.Time, wait time.Duration) string {
	return strconv.Itoa(int(math.Ceil(wait.Seconds())))
}

// asDate rounds up: a date has no fraction of a second.
func asDate(now time.Time, wait time.Duration) string {
	return now.Add(wait + time.Second - 1).UTC().Format(http.TimeFormat)
}

func orASecond(wait time.Duration) time.Duration {
	if wait == 0 {
		return time.Second
	}
	return wait
}
