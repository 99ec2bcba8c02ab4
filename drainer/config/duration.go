package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	durationHint    = "want a duration with its unit, such as 500ms, 10m, 24h or 7d"
	durationPattern = `^([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$|\$\{`
)

const (
	day     = 24 * time.Hour
	maxDays = int64(math.MaxInt64 / day)
)

var errDuration = errors.New(durationHint)

// parseDuration reads what time.ParseDuration reads, with whole days in front.
func parseDuration(text string) (time.Duration, error) {
	before, after, hasDays := strings.Cut(text, "d")
	if !hasDays {
		return parseHours(text)
	}
	days, err := strconv.ParseInt(before, 10, 64)
	if err != nil || days < 0 || days > maxDays {
		return 0, errDuration
	}
	if after == "" {
		return time.Duration(days) * day, nil
	}
	rest, err := parseHours(after)
	if err != nil || rest < 0 || rest > math.MaxInt64-time.Duration(days)*day {
		return 0, errDuration
	}
	return time.Duration(days)*day + rest, nil
}

func parseHours(text string) (time.Duration, error) {
	duration, err := time.ParseDuration(text)
	if err != nil {
		return 0, errDuration
	}
	return duration, nil
}
