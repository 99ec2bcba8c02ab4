package retryafter

import (
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/fault"
)

var noon = time.Date(2030, time.January, 1, 12, 0, 0, 0, time.UTC)

func TestRetryAfterIsUnderstood(t *testing.T) {
	t.Parallel()
	forms := map[string]time.Duration{
		"":                                 0,
		"0":                                0,
		"120":                              2 * time.Minute,
		" 7 ":                              7 * time.Second,
		"1.5":                              1500 * time.Millisecond,
		"0.0000000001":                     1,
		"-5":                               0,
		"+5":                               0,
		"1e3":                              0,
		"0x10":                             0,
		"NaN":                              0,
		"inf":                              0,
		"1.2.3":                            0,
		".":                                0,
		"soon":                             0,
		"9223372036854775808":              Longest,
		"1" + strings.Repeat("0", 400):     Longest,
		"Tue, 01 Jan 2030 12:00:30 GMT":    30 * time.Second,
		"Tuesday, 01-Jan-30 12:00:30 GMT":  30 * time.Second,
		"Tue Jan  1 12:00:30 2030":         30 * time.Second,
		"Tue, 01 Jan 2030 11:00:00 GMT":    0,
		"Tue, 01 Jan 2999 11:00:00 GMT":    Longest,
		"Tue, 01 Jan 2030 12:00:30 +02:00": 0,
	}
	fault.Injected(t, 34, len(forms))
	for text, want := range forms {
		if got := Header(http.Header{"Retry-After": {text}}, noon); got != want {
			t.Errorf("%.40q: %s, want %s", text, got, want)
		}
	}
}

func TestARetryAfterDateIsMeasuredOnTheProvidersClock(t *testing.T) {
	t.Parallel()
	header := http.Header{
		"Retry-After": {"Tue, 01 Jan 2030 12:00:30 GMT"},
		"Date":        {"Tue, 01 Jan 2030 12:00:20 GMT"},
	}
	if got := Header(header, noon.Add(time.Hour)); got != 10*time.Second {
		t.Errorf("got %s, want 10s", got)
	}
}

// Nobody is asked again before the moment that a provider named, nor later than
// in a year, nor in the past.
func FuzzRetryAfterIsNeitherEarlyNorEndless(f *testing.F) {
	for _, seed := range []string{
		"0", "1", "-5", "1.5", "0.0000000001", "31535999.9999999999", "9223372036854775807", "9223372036854775808", "1" + strings.Repeat("0", 400),
		"-9223372036854775808", "1e3", "NaN", "inf", "0x1p4", "1_000", "٣", "1,5", "3, 4",
		"Tue, 01 Jan 2030 12:00:30 GMT", "Tuesday, 01-Jan-30 12:00:30 GMT", "Tue Jan  1 12:00:30 2030", // the three forms
		"Tue, 01 Jan 2030 11:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
	} {
		f.Add(seed, "")
		f.Add(seed, "Fri, 31 Dec 9999 23:59:59 GMT")
		f.Add(seed, "Mon, 01 Jan 0001 00:00:00 GMT")
	}
	f.Fuzz(func(t *testing.T, text, date string) {
		header := http.Header{"Retry-After": {text}, "Date": {date}}
		got := Header(header, noon)
		if got < 0 || got > Longest {
			t.Fatalf("%q, %q: %s", text, date, got)
		}
		if wish, understood := wishOf(strings.TrimSpace(text), DateOf(header, noon)); understood && got+time.Microsecond < min(wish, Longest) {
			t.Errorf("%q, %q: after %s, but the provider said %s", text, date, got, wish) // Postgres knows no less than a microsecond
		}
	})
}

// wishOf reads what the header may say, another way.
func wishOf(text string, date time.Time) (time.Duration, bool) {
	if plainNumber.MatchString(text) {
		seconds, _ := new(big.Rat).SetString(text)
		if seconds.Cmp(new(big.Rat).SetInt64(int64(Longest/time.Second))) > 0 {
			return Longest, true
		}
		whole, _ := seconds.Float64()
		return time.Duration(whole * float64(time.Second)), true
	}
	for _, form := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", "Monday, 02-Jan-06 15:04:05 GMT", "Mon Jan _2 15:04:05 2006"} {
		if at, err := time.Parse(form, text); err == nil {
			return at.Sub(date), true
		}
	}
	return 0, false
}

var plainNumber = regexp.MustCompile(`^[0-9]{1,400}(\.[0-9]{1,400})?$`)
