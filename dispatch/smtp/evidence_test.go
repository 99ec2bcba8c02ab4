package smtp_test

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gosmtp "github.com/emersion/go-smtp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAServersWordsAreNotCut(t *testing.T) {
	t.Parallel()
	for _, code := range []int{250, 550} {
		dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
			server := startMailServer(t, nil)
			server.answer = func(*gosmtp.Conn) error {
				return &gosmtp.SMTPError{Code: code, EnhancedCode: gosmtp.EnhancedCode{code / 100, 0, 0}, Message: "queued as " + words}
			}
			return newAdapter(t, spec(plainly(server.address), `{to: [a@example.com], text: hi}`)).Dispatch(t.Context(), request(`{}`))
		})
	}
}

// Each row has the behaviour of a server at one step, and the outcome that this proves.
func TestEvidence(t *testing.T) {
	t.Parallel()
	const cut, silence, babble = "", "silence", "HTTP/1.1 200 OK"
	for _, test := range []struct {
		step, does string
		outcome    dispatch.Outcome
		class      string
	}{
		{"connect", cut, dispatch.NotSent, "reset"},
		{"connect", silence, dispatch.NotSent, "timeout"},
		{"connect", babble, dispatch.NotSent, "protocol"},
		{"connect", "421 too busy", dispatch.Throttled, "smtp_421"},
		{"connect", "554 not here", dispatch.NotSent, "smtp_554"},
		{"EHLO", cut, dispatch.NotSent, "reset"},
		{"EHLO", "502 unknown command", dispatch.Completed, ""}, // the client goes on with HELO
		{"MAIL", cut, dispatch.NotSent, "reset"},
		{"MAIL", silence, dispatch.NotSent, "timeout"},
		{"MAIL", babble, dispatch.NotSent, "protocol"},
		{"MAIL", "452 disk full", dispatch.Throttled, "smtp_452"},
		{"MAIL", "530 log in first", dispatch.CredentialsRefused, "smtp_530"},
		{"RCPT", cut, dispatch.NotSent, "reset"},
		{"RCPT", "450 greylisted", dispatch.Throttled, "smtp_450"},
		{"RCPT", "550 no such user", dispatch.Rejected, "smtp_550"},
		{"RCPT", "421 closing", dispatch.Throttled, "smtp_421"},
		{"DATA", cut, dispatch.NotSent, "reset"},
		{"DATA", "250 what", dispatch.NotSent, "protocol"},
		{"MAIL", "250 fine\r\n250 fine", dispatch.NotSent, "protocol"},
		{"DATA", "354 go on\r\n354 go on", dispatch.NotSent, "protocol"},
		{"DATA", "354 go on\r\n250 fine", dispatch.NotSent, "protocol"},
		{"DATA", "354 go on\r\n421 closing", dispatch.Throttled, "smtp_421"},
		{"DATA", "451 not now", dispatch.Throttled, "smtp_451"},
		{"DATA", "554 no valid recipients", dispatch.Rejected, "smtp_554"},
		{"content", cut, dispatch.NotSent, "reset"},
		{"content", silence, dispatch.NotSent, "timeout"},
		{".", cut, dispatch.Ambiguous, "reset"},
		{".", silence, dispatch.Ambiguous, "timeout"},
		{".", babble, dispatch.Ambiguous, "protocol"},
		{".", "354 go on", dispatch.Ambiguous, "protocol"},
		{".", "421 closing", dispatch.Throttled, "smtp_421"},
		{".", "451 not now", dispatch.Throttled, "smtp_451"},
		{".", "552 too much", dispatch.Rejected, "smtp_552"},
		{".", "250-2.0.0 Ok", dispatch.Ambiguous, "timeout"}, // the hyphen announces another line
		{".", "250 2.0.0 Ok", dispatch.Completed, ""},
		{"QUIT", cut, dispatch.Completed, ""},
		{"QUIT", silence, dispatch.Completed, ""},
	} {
		t.Run(test.step+" "+test.does, func(t *testing.T) {
			t.Parallel()
			address := startScript(t, map[string]string{test.step: test.does})
			specification := spec(plainly(address), aTool)
			if test.class == "timeout" { // these rows wait for the timeout, and must reach their step before it
				specification.Timeout = 3 * time.Second
			}
			payload := aPayload
			if test.step == "content" {
				payload = strings.Replace(aPayload, "bye", strings.Repeat("more than the buffers hold ", 1<<15), 1)
				specification.Network = dispatch.NewNetwork(dialSmall, nil)
				specification.Timeout = 5 * time.Second
				if test.does == cut { // a connection that waits for room notices the cut only when it asks for room again
					specification.Timeout = drainertest.Patience
				}
			}
			adapter := newAdapter(t, specification)
			for tries := 1; ; tries++ { // a busy machine may delay the dispatch
				started := time.Now()
				dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(payload)), test.outcome, test.class)
				took := time.Since(started)
				if took <= specification.Timeout+2*time.Second {
					return
				}
				if tries == 3 {
					t.Fatalf("it took %s", took)
				}
			}
		})
	}
}

// dialSmall makes a connection on which only a little data can be under way.
func dialSmall(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return conn, conn.(*net.TCPConn).SetWriteBuffer(4096)
}

// startScript starts a server that behaves correctly except at the scripted steps. There it sends another reply,
// hangs up for "", or sends nothing more for "silence".
func startScript(t *testing.T, script map[string]string) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(conn net.Conn) {
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		reader := bufio.NewReader(conn)
		step := "connect"
		for {
			reply, scripted := script[step]
			switch {
			case scripted && reply == "":
				return
			case scripted && reply == "silence":
				<-t.Context().Done()
				return
			case !scripted:
				reply = map[string]string{"connect": "220 ready", "DATA": "354 go on", "QUIT": "221 bye", "content": ""}[step]
				if reply == "" && step != "content" {
					reply = "250 fine"
				}
			}
			if reply != "" {
				_, _ = io.WriteString(conn, reply+"\r\n")
			}
			var err error
			if step, err = next(reader, step); err != nil {
				return
			}
		}
	})
}

// next reads the client's input and returns the step that follows. After DATA come first the content, of which it
// reads little, and then the dot.
func next(reader *bufio.Reader, step string) (string, error) {
	switch step {
	case "DATA":
		_, err := reader.Peek(1)
		return "content", err
	case "content":
		for {
			line, err := reader.ReadString('\n')
			if err != nil || line == ".\r\n" {
				return ".", err
			}
		}
	}
	line, err := reader.ReadString('\n')
	command, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return command, err
}

// An error at the write of the dot does not say how much of it was sent.
func TestADotThatCouldNotBeWrittenIsInDoubt(t *testing.T) {
	t.Parallel()
	server := startMailServer(t, nil)
	specification := spec(plainly(server.address), aTool)
	specification.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
		return &dotFails{conn}, err
	}, nil)
	dispatchtest.Expect(t, newAdapter(t, specification).Dispatch(t.Context(), request(aPayload)), dispatch.Ambiguous, "reset")
}

// dotFails writes the dot, and returns an error.
type dotFails struct{ net.Conn }

func (d *dotFails) Write(data []byte) (int, error) {
	n, err := d.Conn.Write(data)
	if strings.TrimPrefix(string(data), "\r\n") == ".\r\n" {
		return 0, syscall.ECONNRESET
	}
	return n, err
}

func TestOneRefusedRecipientIsTheEndForAll(t *testing.T) {
	t.Parallel()
	for code, outcome := range map[int]dispatch.Outcome{450: dispatch.Throttled, 550: dispatch.Rejected} {
		server := startMailServer(t, nil)
		server.rcpt = func(address string) error {
			if address == "b@example.com" {
				return &gosmtp.SMTPError{Code: code, EnhancedCode: gosmtp.EnhancedCode{5, 1, 1}, Message: "no such user"}
			}
			return nil
		}
		result := newAdapter(t, spec(plainly(server.address), `{to: [a@example.com, b@example.com, c@example.com], text: hi}`)).Dispatch(t.Context(), request(`{}`))
		if result.Outcome != outcome || len(server.deliveries()) != 0 {
			t.Errorf("%d: %+v, want %s; %d mails", code, result, outcome, len(server.deliveries()))
		}
		if result.Problem == nil || result.Problem.Detail != "5.1.1 no such user" {
			t.Errorf("the server's words: %+v", result.Problem)
		}
	}
}

func TestAMailOverTheServersLimitIsNotOffered(t *testing.T) {
	t.Parallel()
	server := startMailServer(t, func(s *gosmtp.Server) { s.MaxMessageBytes = 2000 })
	adapter := newAdapter(t, spec(plainly(server.address), `{to: [a@example.com], text: "{.payload}"}`))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`"`+long(2000)+`"`)), dispatch.Rejected, "message_too_large")
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`"`+long(1000)+`"`)), dispatch.Completed, "")
}

func TestAnEndlessReplyIsNotRead(t *testing.T) {
	t.Parallel()
	address := dispatchtest.ServeConns(t, func(conn net.Conn) {
		for {
			if _, err := io.WriteString(conn, long(1000)); err != nil {
				return
			}
		}
	})
	patient := spec(plainly(address), aTool)
	patient.Timeout = drainertest.Patience // its end would give another class
	dispatchtest.Expect(t, newAdapter(t, patient).Dispatch(t.Context(), request(aPayload)), dispatch.NotSent, "protocol")
}

// A connection may be cut anywhere. The mailbox must agree with every outcome.
func TestOutcomesHoldWhereverTheConnectionIsCut(t *testing.T) {
	t.Parallel()
	// A dialogue takes up to 7000 bytes from the client. The server sends more if it shows its certificate.
	for security, said := range map[string]int64{"none": 500, "starttls": 4_000} {
		t.Run(security, func(t *testing.T) {
			t.Parallel()
			server := startMailServer(t, nil)
			var sessions sync.WaitGroup
			gate := dispatchtest.OpenGate(t, server.address, func(client, server net.Conn) {
				defer sessions.Done()
				dispatchtest.Carry(client, server, rand.Int64N(12_000), rand.Int64N(said))
			})
			specification := spec("server: "+gate.Address+"\nfrom: a@example.org\nsecurity: "+security, `{to: [a@example.com], text: "{.payload}"}`)
			specification.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
				sessions.Add(1)
				return dispatch.PlainDialer().DialContext(ctx, network, address)
			}, server.trusted)
			adapter := newAdapter(t, specification)
			outcomes := map[string]dispatch.Result{}
			for range 120 {
				intent := request(`"` + long(rand.IntN(6_000)) + `"`)
				outcomes[intent.IdempotencyKey] = adapter.Dispatch(t.Context(), intent)
			}
			sessions.Wait() // the server has read all that it was sent
			stored := ""
			for _, mail := range server.deliveries() {
				stored += mail.data
			}
			count := map[dispatch.Outcome]int{}
			for key, result := range outcomes {
				count[result.Outcome]++
				switch isStored := strings.Contains(stored, key); result.Outcome {
				case dispatch.Completed:
					if !isStored {
						t.Errorf("%+v, but it did not arrive", result)
					}
				case dispatch.NotSent:
					if isStored {
						t.Errorf("%+v, but it arrived", result)
					}
				case dispatch.Ambiguous:
				default:
					t.Errorf("%+v, but the server refused nothing", result)
				}
			}
			if count[dispatch.Completed] == 0 || count[dispatch.NotSent] == 0 || count[dispatch.Ambiguous] == 0 {
				t.Errorf("the cuts do not reach everywhere: %v", count)
			}
			t.Log(count, len(server.deliveries()), "arrived")
		})
	}
}

func TestTheServerIsTrustedAndLoggedInto(t *testing.T) {
	t.Parallel()
	server := startMailServer(t, nil)
	implicit := startEncrypted(t)
	login := func(method, secret string) string {
		return "\nfrom: a@example.org\nauth: {method: " + method + ", user: " + user + ", password: " + secret + "}"
	}
	for name, test := range map[string]struct {
		server   *mailServer
		settings string
		distrust bool
		outcome  dispatch.Outcome
		class    string
	}{
		"starttls, plain":         {server, login("plain", password), false, dispatch.Completed, ""},
		"starttls, login":         {server, login("login", password), false, dispatch.Completed, ""},
		"tls, plain":              {implicit, "\nsecurity: tls" + login("plain", password), false, dispatch.Completed, ""},
		"another password":        {server, login("plain", "other"), false, dispatch.CredentialsRefused, "auth"},
		"another password again":  {server, login("login", "other"), false, dispatch.CredentialsRefused, "auth"},
		"starttls, distrusted":    {server, login("plain", password), true, dispatch.NotSent, "tls"},
		"tls, distrusted":         {implicit, "\nsecurity: tls" + login("plain", password), true, dispatch.NotSent, "tls"},
		"tls where there is none": {server, "\nsecurity: tls" + login("plain", password), false, dispatch.NotSent, "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			specification := spec("server: "+test.server.address+test.settings, aTool)
			if !test.distrust {
				specification.Network = dispatch.NewNetwork(nil, test.server.trusted)
			}
			before := len(test.server.logins)
			got := newAdapter(t, specification).Dispatch(t.Context(), request(aPayload))
			dispatchtest.Expect(t, got, test.outcome, test.class)
			if loggedIn := len(test.server.logins) > before; loggedIn != (test.outcome == dispatch.Completed) {
				t.Errorf("logged in: %t", loggedIn)
			}
			if got.Problem != nil {
				t.Errorf("words from before the mail are kept: %+v", got.Problem)
			}
		})
	}
}

// A server without STARTTLS, or an attacker who hides STARTTLS, gets only the EHLO.
func TestNothingIsSaidWithoutEncryptionThatWasAskedFor(t *testing.T) {
	t.Parallel()
	var heard strings.Builder
	var mu sync.Mutex
	address := dispatchtest.ServeConns(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "220 ready\r\n")
		reader := bufio.NewReader(conn)
		for {
			line, err := reader.ReadString('\n')
			mu.Lock()
			heard.WriteString(line)
			mu.Unlock()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "250-mail.example.com\r\n250 AUTH PLAIN LOGIN\r\n")
		}
	})
	settings := "server: " + address + "\nfrom: a@example.org\nhello: drainer.example.org\nauth: {user: " + user + ", password: " + password + "}"
	dispatchtest.Expect(t, newAdapter(t, spec(settings, aTool)).Dispatch(t.Context(), request(aPayload)), dispatch.NotSent, "no_starttls")
	mu.Lock()
	defer mu.Unlock()
	if heard.String() != "EHLO drainer.example.org\r\n" {
		t.Errorf("it got %q", heard.String())
	}
}
