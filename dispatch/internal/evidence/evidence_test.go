package evidence

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/fault"
)

// A failure has one class if nothing was written, and another one if something may have been written. The end of
// the dispatch comes before all other causes, except for a refused egress, which proves that nothing was written.
func TestAFailureIsNamedByWhatItProves(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	other := errors.New("malformed HTTP response")
	for _, test := range []struct {
		err          error
		ctx          context.Context
		unsent, sent string
	}{
		{other, t.Context(), "dial", "protocol"},
		{syscall.ECONNREFUSED, t.Context(), "dial", "protocol"},
		{io.EOF, t.Context(), "dial", "reset"},
		{io.ErrUnexpectedEOF, t.Context(), "dial", "reset"},
		{syscall.ECONNRESET, t.Context(), "dial", "reset"},
		{syscall.EPIPE, t.Context(), "dial", "reset"},
		{os.ErrDeadlineExceeded, t.Context(), "timeout", "timeout"},
		{syscall.ETIMEDOUT, t.Context(), "timeout", "timeout"},
		{&net.DNSError{IsTimeout: true}, t.Context(), "dns", "timeout"},
		{dispatch.ErrEgressRefused, over, "egress_refused", "cancelled"},
		{other, over, "cancelled", "cancelled"},
		{io.EOF, late, "timeout", "timeout"},
		{&tls.CertificateVerificationError{Err: other}, t.Context(), "tls", "protocol"},
		{tls.RecordHeaderError{}, t.Context(), "tls", "protocol"},
		{tls.AlertError(40), t.Context(), "tls", "protocol"},
		{x509.UnknownAuthorityError{}, t.Context(), "tls", "protocol"},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, t.Context(), "tls", "protocol"},
		{x509.CertificateInvalidError{}, t.Context(), "tls", "protocol"},
	} {
		wrapped := fmt.Errorf("posting: %w", test.err)
		if got := Unsent(test.ctx, wrapped); got != test.unsent {
			t.Errorf("%v, nothing written: %s, want %s", wrapped, got, test.unsent)
		}
		if got := Sent(test.ctx, wrapped); got != test.sent {
			t.Errorf("%v, something written: %s, want %s", wrapped, got, test.sent)
		}
	}
}

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
		"9223372036854775808":              LongestWait,
		"1" + strings.Repeat("0", 400):     LongestWait,
		"Tue, 01 Jan 2030 12:00:30 GMT":    30 * time.Second,
		"Tuesday, 01-Jan-30 12:00:30 GMT":  30 * time.Second,
		"Tue Jan  1 12:00:30 2030":         30 * time.Second,
		"Tue, 01 Jan 2030 11:00:00 GMT":    0,
		"Tue, 01 Jan 2999 11:00:00 GMT":    LongestWait,
		"Tue, 01 Jan 2030 12:00:30 +02:00": 0,
	}
	fault.Injected(t, 34, len(forms))
	for text, want := range forms {
		if got := RetryAfter(http.Header{"Retry-After": {text}}, noon); got != want {
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
	if got := RetryAfter(header, noon.Add(time.Hour)); got != 10*time.Second {
		t.Errorf("got %s, want 10s", got)
	}
}

// A retry is never before the moment that a provider named, unless that is more than a year away, and never in the
// past.
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
		got := RetryAfter(header, noon)
		if got < 0 || got > LongestWait {
			t.Fatalf("%q, %q: %s", text, date, got)
		}
		if wish, understood := wishOf(strings.TrimSpace(text), DateOf(header, noon)); understood && got+time.Microsecond < min(wish, LongestWait) {
			t.Errorf("%q, %q: after %s, but the provider said %s", text, date, got, wish) // Postgres has no unit below a microsecond
		}
	})
}

// wishOf computes the wait by another method than RetryAfter.
func wishOf(text string, date time.Time) (time.Duration, bool) {
	if plainNumber.MatchString(text) {
		seconds, _ := new(big.Rat).SetString(text)
		if seconds.Cmp(new(big.Rat).SetInt64(int64(LongestWait/time.Second))) > 0 {
			return LongestWait, true
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

func TestABodyBecomesStorableJSON(t *testing.T) {
	t.Parallel()
	const declared = "application/json"
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	zeros := func(power string, times int) string { return "[" + strings.Repeat("1e"+power+",", times) + "1]" }
	digits := func(n int) string { return "[" + strings.Repeat("1", n) + "]" }
	flat := "[" + strings.Repeat("[],", 600) + "{}]"
	for name, test := range map[string]struct{ body, contentType, want string }{
		"empty":              {"", declared, ""},
		"verbatim":           {"{\"b\": 1,\n \"a\":\"\\u00e9\\\\u0000\"}", declared, "{\"b\": 1,\n \"a\":\"\\u00e9\\\\u0000\"}"},
		"scalar":             {"true", declared, "true"},
		"problem":            {`{"title":"x"}`, "application/problem+json", `{"title":"x"}`},
		"JSON as text":       {` [1]`, "text/plain", ` [1]`},
		"number as text":     {"12", "text/plain", `"12"`},
		"text":               {"a\x00b\xffc", "text/plain", `"a` + replacement + `b` + replacement + `c"`},
		"escaped NUL":        {`{"a\u0000":"\u0000"}`, declared, `{"a` + replacement + `":"` + replacement + `"}`},
		"lone high":          {`"\ud800x"`, declared, `"` + replacement + `x"`},
		"lone low":           {`"\udc00"`, declared, `"` + replacement + `"`},
		"next to surrogates": {`"\ud7ff\ue000"`, declared, `"\ud7ff\ue000"`},
		"the last pair":      {`"\udbff\udfff"`, declared, `"\udbff\udfff"`},
		"the last high":      {`"\udbff"`, declared, `"` + replacement + `"`},
		"the last low":       {`"\udfff"`, declared, `"` + replacement + `"`},
		"high high low":      {`"\ud800\ud83d\ude00"`, declared, `"` + replacement + `\ud83d\ude00"`},
		"raw bad UTF-8":      {"\"\xff\"", declared, `"` + replacement + `"`},
		"huge exponent":      {`[1e999999]`, declared, `"[1e999999]"`},
		"tiny exponent":      {`[1E-999999]`, declared, `"[1E-999999]"`},
		"exponents":          {`[1e400,-2.5E-7,0]`, declared, `[1e400,-2.5E-7,0]`},
		"largest exponents":  {`[1e1000,1e-1000]`, declared, `[1e1000,1e-1000]`},
		"exponent too large": {`[1e1001]`, declared, `"[1e1001]"`},
		"exponent too small": {`[1e-1001]`, declared, `"[1e-1001]"`},
		"most zeros":         {zeros("512", 2048), declared, zeros("512", 2048)},
		"too many zeros":     {zeros("513", 2048), declared, `"` + zeros("513", 2048) + `"`},
		"too many, in front": {zeros("-513", 2048), declared, `"` + zeros("-513", 2048) + `"`},
		"most digits":        {digits(1000), declared, digits(1000)},
		"too many digits":    {digits(1001), declared, `"` + digits(1001) + `"`},
		"deepest":            {nested(500), declared, nested(500)},
		"too deep":           {nested(501), declared, `"` + nested(501) + `"`},
		"wide, not deep":     {flat, declared, flat},
		"blank":              {" \n", "text/plain", `" \n"`},
		"not JSON after all": {`{"a`, declared, `"{\"a"`},
	} {
		if got := string(JSON([]byte(test.body), test.contentType)); got != test.want {
			t.Errorf("%s: %.80s, want %.80s", name, got, test.want)
		}
	}
}

func TestATextIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text   string
		length int
		want   string
	}{
		"shorter":       {"añ", 3, "añ"},
		"as long":       {"añb", 3, "añb"},
		"longer":        {"añbc", 3, "añb"},
		"made storable": {"\x00\xffbc", 3, replacement + replacement + "b"},
		"to nothing":    {"a", 0, ""},
	} {
		if got := First(test.text, test.length); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestOneLineOfASecretIsNotRepeated(t *testing.T) {
	t.Parallel()
	env := map[string]string{"KEY": "-----BEGIN KEY-----\nbm90IGEga2V5\n-----END KEY-----", "A": "abcdefgh", "B": "abcdefghij", "SHORT": "no"}
	for line, want := range map[string]string{
		"bm90IGEga2V5": "[secret]", "at abcdefghij": "at [secret]", "at abcdefgh": "at [secret]", "no, not that": "no, not that",
	} {
		if got := Without(line, env); got != want {
			t.Errorf("%q becomes %q, want %q", line, got, want)
		}
	}
}

// A child's stderr is in drainer's log line by line, each under the provider's name, and without control
// characters.
func FuzzAChildsLogCannotPassForDrainers(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "one\ntwo", "a\r\n\tb\r", "\x1b[2J\x1b[Hdrainer: all is well", "\u0085other: \u009b2J", "\xff\xc2\n", "x\u2028y",
		strings.Repeat("x", 2*longestLogged) + "\nnext\n", strings.Repeat("é", longestLogged) + "\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		var log bytes.Buffer
		Relay(bytes.NewReader(said), &log, "desk")
		if most := bytes.Count(said, []byte("\n")) + 1; bytes.Count(log.Bytes(), []byte("\n")) > most {
			t.Errorf("%q becomes %q", said, log.String())
		}
		for line := range strings.Lines(log.String()) {
			text, isOurs := strings.CutPrefix(line, "desk: ")
			text, isWhole := strings.CutSuffix(text, "\n")
			isControl := func(r rune) bool { return unicode.IsControl(r) && r != '\t' }
			if !isOurs || !isWhole || utf8.RuneCountInString(text) > longestLogged || strings.ContainsFunc(text, isControl) {
				t.Errorf("%q becomes %q", said, line)
			}
		}
	})
}
