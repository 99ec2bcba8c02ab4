package retryafter

import (
	"net/http"
	"testing"
	"time"
)

var noon = time.Date(2030, time.January, 1, 12, 0, 0, 0, time.UTC)

func TestRetryAfterIsUnderstood(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
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
		"1" + string(make0s(400)):          Longest,
		"Tue, 01 Jan 2030 12:00:30 GMT":    30 * time.Second,
		"Tuesday, 01-Jan-30 12:00:30 GMT":  30 * time.Second,
		"Tue Jan  1 12:00:30 2030":         30 * time.Second,
		"Tue, 01 Jan 2030 11:00:00 GMT":    0,
		"Tue, 01 Jan 2999 11:00:00 GMT":    Longest,
		"Tue, 01 Jan 2030 12:00:30 +02:00": 0,
	} {
		if got := Header(http.Header{"Retry-After": {text}}, noon); got != want {
			t.Errorf("%.40q: %s, want %s", text, got, want)
		}
	}
}

func make0s(n int) []byte {
	zeros := make([]byte, n)
	for i := range zeros {
		zeros[i] = '0'
	}
	return zeros
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

func FuzzRetryAfterStaysInBounds(f *testing.F) {
	for _, seed := range []string{"1", "-1", "1.5", "9e99", "Tue, 01 Jan 2030 12:00:30 GMT"} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, text, date string) {
		got := Header(http.Header{"Retry-After": {text}, "Date": {date}}, noon)
		if got < 0 || got > Longest {
			t.Errorf("%q, %q: %s", text, date, got)
		}
	})
}
