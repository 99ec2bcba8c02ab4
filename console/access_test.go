package console

import (
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
