package console

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestASessionEndsAndIsForgotten(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newSessions()
	s.now = func() time.Time { return now }
	begin := func() *http.Request {
		answer := httptest.NewRecorder()
		s.begin(answer, httptest.NewRequest(http.MethodGet, "/", nil), Person{"alice", Operator})
		next := httptest.NewRequest(http.MethodGet, "/", nil)
		next.AddCookie(answer.Result().Cookies()[0])
		return next
	}
	request := begin()
	now = now.Add(sessionLength - time.Second)
	if who, known := s.Who(request); !known || who.Name != "alice" {
		t.Errorf("a second before its end the session is of %+v, %t", who, known)
	}
	now = now.Add(time.Second)
	if _, known := s.Who(request); known {
		t.Error("a session that has ended opens the console")
	}
	begin()
	if len(s.open) != 1 {
		t.Errorf("%d sessions are kept, want the new one alone", len(s.open))
	}
}

// The proxy that speaks TLS need not say so in a header.
func TestCookiesOfAConsoleWithAnHTTPSAddressGoOverTLSAlone(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]bool{"https://console.example": true, "HTTPS://console.example": true, "http://localhost:9465": false} {
		access, err := OIDC{Issuer: "https://issuer.example", ClientID: "drainer", URL: at}.Access(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		answer, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		o := access.(*openID)
		o.setFlow(answer, request, "flow", 60)
		o.begin(answer, request, Person{"alice", Operator})
		for _, cookie := range answer.Result().Cookies() {
			if cookie.Secure != want {
				t.Errorf("%s: the cookie %s has Secure %t", at, cookie.Name, cookie.Secure)
			}
		}
	}
}
