package pgpool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/internal/child"
)

// Database says where the connections of a process lead, and how they log in. Host, port, database and parameters
// stay those of the first connection. User, password and certificates are read again before each connect, because
// they may be replaced while the process runs.
type Database struct {
	read    func() (Login, error)
	command *passwordCommand // nil: the password is part of the login

	mu        sync.Mutex
	here      *pgxpool.Config // the last login for the first host, port and database
	log       *slog.Logger
	refusal   error     // of the newest connect; nil if it was accepted or not answered
	decidedAt time.Time // when the newest decisive connect began; for a statement, when it ended
	away      bool      // the newest connect failed, and was not refused

	refusals, outages logged // separate, because a line about one says nothing about the other

	loggedAway bool // an outage was logged, and no connect has succeeded since

	refusedLater atomic.Bool // a statement was refused, and none has succeeded since

	loggedMoved time.Time // when the last line was logged that the URL leads elsewhere
}

// Login is a login as it was read at one time.
type Login struct {
	URL      string
	Password string // replaces the password in the URL, if it is not empty
}

// NewDatabase returns a Database that calls read before each connect. If command is not empty, the command prints
// the password, and its output is reused for ttl.
func NewDatabase(read func() (Login, error), command []string, ttl time.Duration) *Database {
	d := &Database{read: read}
	if len(command) > 0 {
		d.command = newPasswordCommand(command, ttl)
	}
	return d
}

// At returns a Database whose URL never changes.
func At(url string) *Database {
	return NewDatabase(func() (Login, error) { return Login{URL: url}, nil }, nil, 0)
}

var (
	// ErrURL is returned without the parser's error, which may repeat a password.
	ErrURL = errors.New("the database URL cannot be read; write postgres://user:password@host:5432/database, with special characters escaped, and check the certificates that it names")
	// ErrRefused says that a server answered and does not accept this login.
	ErrRefused = errors.New("the database refuses this login")
	// ErrPooler says that PgBouncer cannot connect to the server. It does not distinguish a refused login from a
	// server that is away.
	ErrPooler = errors.New("the pooler cannot log in at the database, or the database is away: the pooler's log says why")
	// ErrNoLogin says that no login could be read, so that no connect was tried.
	ErrNoLogin = errors.New("there is no login for the database")
)

// Config returns the configuration for a connect now. It runs the password command if there is one.
func (d *Database) Config(ctx context.Context) (*pgxpool.Config, error) {
	config, moved, err := d.config()
	if err != nil || moved || d.command == nil {
		return config, err
	}
	if config.ConnConfig.Password, err = d.command.password(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.here = config.Copy()
	return config, nil
}

// config runs no command. If the URL now leads to another server or database, config returns the last login for
// the old one, and moved is true. A process belongs to one outbox, and the old server must not receive the new
// one's password.
func (d *Database) config() (config *pgxpool.Config, moved bool, err error) {
	login, err := d.read()
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	config, err = pgxpool.ParseConfig(login.URL)
	if err != nil {
		return nil, false, ErrURL
	}
	config.ConnConfig.BuildFrontend = readRefusals
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // pgx reads and writes UTF8; poolers accept this parameter, too
	if login.Password != "" {
		config.ConnConfig.Password = login.Password
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.here != nil && !slices.Equal(places(config.ConnConfig), places(d.here.ConnConfig)) {
		if d.log != nil && time.Since(d.loggedMoved) >= logEvery {
			d.log.Warn("the database URL leads to another server or database now; restart to follow it")
			d.loggedMoved = time.Now()
		}
		return d.here.Copy(), true, nil
	}
	if d.here == nil || d.command == nil {
		d.here = config.Copy()
	}
	return config, false, nil
}

// URL returns the present URL.
func (d *Database) URL() (string, error) {
	login, err := d.read()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	return login.URL, nil
}

// User returns the user of the login, or "" if it cannot be read.
func (d *Database) User() string {
	config, _, err := d.config()
	if err != nil {
		return ""
	}
	return config.ConnConfig.User
}

// BeforeConnect puts the present login into an older configuration.
func (d *Database) BeforeConnect(ctx context.Context, next *pgx.ConnConfig) error {
	now, err := d.Config(ctx)
	if err != nil {
		d.connected(time.Now(), err)
		return err
	}
	fresh := now.ConnConfig
	next.User, next.Password = fresh.User, fresh.Password
	next.TLSConfig, next.Fallbacks = fresh.TLSConfig, fresh.Fallbacks // certificates may have been replaced
	next.BuildFrontend = fresh.BuildFrontend
	return nil
}

// places returns the database, and the hosts and ports, of a configuration.
func places(config *pgx.ConnConfig) []string {
	all := []string{config.Database, fmt.Sprintf("%s:%d", config.Host, config.Port)}
	for _, fallback := range config.Fallbacks {
		all = append(all, fmt.Sprintf("%s:%d", fallback.Host, fallback.Port))
	}
	return slices.Compact(all) // a host may be tried with TLS and without
}

// Refusal returns why the newest connect was refused. It returns nil if the login was accepted, or if no server
// answered.
func (d *Database) Refusal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refusal
}

// Logging logs later connects that fail, at most one line a minute for each cause. It returns a logger for all
// users of the database, which drops lines that repeat these failures.
func (d *Database) Logging(log *slog.Logger) *slog.Logger {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = log
	return slog.New(unrepeated{Handler: log.Handler(), database: d})
}

// logEvery keeps many refused connects from filling the log.
const logEvery = time.Minute

// connected notes the result of a connect. A transaction pooler accepts a client before it has logged in at the
// server. So a successful connect does not clear the refusal of a statement.
func (d *Database) connected(start time.Time, err error) {
	if !d.refusedLater.Load() || refusalOf(err) != nil {
		d.note(start, err)
	}
}

// answered notes the result of a statement.
func (d *Database) answered(err error) {
	switch {
	case refusalOf(err) != nil:
		d.refusedLater.Store(true)
		d.note(time.Now(), err)
	case err == nil && d.refusedLater.CompareAndSwap(true, false):
		d.note(time.Now(), nil)
	}
}

// note remembers what the newest answer says about the login. Of several connects at once, the one that began last
// counts, because it has the newest login.
func (d *Database) note(start time.Time, err error) {
	refusal := refusalOf(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	if start.Before(d.decidedAt) {
		return
	}
	if err == nil || refusal != nil {
		d.decidedAt = start
	}
	if d.command != nil && errors.Is(refusal, ErrRefused) {
		d.command.forget()
	}
	was := d.refusal
	d.refusal, d.away = refusal, refusal == nil && isAway(err)
	switch {
	case d.log == nil:
	case refusal != nil:
		d.refusals.line(d.log, "cannot log in to the database; each connect tries again", refusal)
	case d.away:
		if d.outages.line(d.log, "cannot connect to the database; each connect tries again", err) {
			d.loggedAway = true
		}
	case err == nil && was != nil:
		d.log.Info("the database accepts the login again")
	case err == nil && d.loggedAway:
		d.log.Info("the database takes connections again")
		d.loggedAway = false
	}
}

// logged holds when a cause was logged last, and how many of its failures were dropped since.
type logged struct {
	at      time.Time
	leftOut int
}

// line reports whether it logged the failure.
func (l *logged) line(log *slog.Logger, message string, err error) bool {
	if time.Since(l.at) < logEvery {
		l.leftOut++
		return false
	}
	log.Error(message, "error", err, "not_logged_before", l.leftOut)
	*l = logged{at: time.Now()}
	return true
}

// isAway reports whether a connect met no server, or a server that starts or stops. A failed statement does not
// count, and neither does a connect that this process cancelled because it ends.
func isAway(err error) bool {
	var failed *pgconn.ConnectError
	return errors.As(err, &failed) && refusalOf(err) == nil && !errors.Is(err, context.Canceled)
}

// refusalOf returns nil for a success, and for a connect that no server answered. It leaves out the server's
// message, which names the user.
func refusalOf(err error) error {
	var refused *pgconn.PgError
	switch {
	case errors.Is(err, ErrRefused), errors.Is(err, ErrPooler), errors.Is(err, ErrNoLogin), errors.Is(err, ErrURL):
		return err
	case errors.As(err, &refused) && (strings.HasPrefix(refused.Code, "28") || isPoolers(refused)): // 28: "invalid authorization specification"
		return fmt.Errorf("%w (SQLSTATE %s)", ErrRefused, refused.Code)
	case errors.As(err, &refused) && refused.Code == protocolViolation && strings.HasPrefix(refused.Message, "server login has been failing"):
		return ErrPooler
	}
	var alert *net.OpError // crypto/tls does not export the type of an alert
	if errors.As(err, &alert) && alert.Op == "remote error" {
		return fmt.Errorf("%w (TLS: %w)", ErrRefused, alert.Err)
	}
	return nil
}

// readRefusals makes pgx read a server's answer even if the server has closed the connection before pgx's first
// write. With TLS 1.3 a server refuses a client's certificate after the client has finished the handshake, and
// closes the connection. The first write then fails with a reset, although the alert with the reason can still be
// read.
func readRefusals(reader io.Reader, writer io.Writer) *pgproto3.Frontend {
	return pgproto3.NewFrontend(reader, &firstWrite{writer: writer})
}

// firstWrite hides that the first write failed because the server closed the connection. The read after the
// startup message then returns the reason.
type firstWrite struct {
	writer io.Writer
	made   bool
}

func (f *firstWrite) Write(message []byte) (int, error) {
	n, err := f.writer.Write(message)
	if !f.made && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		n, err = len(message), nil
	}
	f.made = true
	return n, err
}

// protocolViolation is PgBouncer's code for its own refusals; before 1.19 it is the code of all of them.
const protocolViolation = "08P01"

// isPoolers also recognises a refusal by the server that PgBouncer repeats.
func isPoolers(refused *pgconn.PgError) bool {
	return refused.Code == protocolViolation && slices.ContainsFunc(
		[]string{"SASL authentication failed", "password authentication failed", "login rejected", "no such user"},
		func(words string) bool { return strings.Contains(refused.Message, words) })
}

// Refused reports whether a server refused the login. It is false if no server answered.
func Refused(err error) bool { return errors.Is(refusalOf(err), ErrRefused) }

// unrepeated drops warnings whose error is a refused login or a server that does not answer. Otherwise every loop
// that needs the database would log them, about ten lines a second in all. River's errors are text. They are
// dropped while the login is refused, and if they tell of a failed connect, while no server answers. The daemon's
// own lines with a text stay: there the text is the class of an attempt's error.
type unrepeated struct {
	slog.Handler
	database *Database
	asText   bool // the lines are of a library that logs errors as text
}

// ErrorsAsText adapts a handler for a library that logs errors as text, as River does. It changes only a handler
// that Logging made.
func ErrorsAsText(handler slog.Handler) slog.Handler {
	if u, is := handler.(unrepeated); is {
		u.asText = true
		return u
	}
	return handler
}

func (u unrepeated) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelWarn && u.repeats(record) {
		return nil
	}
	return u.Handler.Handle(ctx, record)
}

func (u unrepeated) repeats(record slog.Record) (repeats bool) {
	record.Attrs(func(attr slog.Attr) bool {
		if attr.Key != "error" && attr.Key != "err" {
			return true
		}
		if err, is := attr.Value.Any().(error); is {
			repeats = record.Level < slog.LevelError && (refusalOf(err) != nil || isAway(err))
		} else if u.asText {
			u.database.mu.Lock()
			repeats = u.database.refusal != nil || u.database.away && strings.Contains(attr.Value.String(), "failed to connect to")
			u.database.mu.Unlock()
		}
		return false
	})
	return repeats
}

func (u unrepeated) WithAttrs(attrs []slog.Attr) slog.Handler {
	u.Handler = u.Handler.WithAttrs(attrs)
	return u
}

func (u unrepeated) WithGroup(name string) slog.Handler {
	u.Handler = u.Handler.WithGroup(name)
	return u
}

const (
	// commandTimeout is far above the time that the cloud providers' programs need, even on a slow machine.
	commandTimeout = 15 * time.Second
	// longestPassword is above any token. Postgres itself accepts no longer password.
	longestPassword = 64 << 10
	// commandPause is the least time between two runs, because many connects may fail at once.
	commandPause = time.Second
)

// passwordCommand gets passwords from a program. It runs once at a time, for all connections of the process. Its
// output and its arguments are never shown.
type passwordCommand struct {
	command []string
	ttl     time.Duration
	refused atomic.Bool // the newest password was refused; another run may print another

	turn    chan struct{} // held to read or write the fields below
	printed string
	failure error
	ran     time.Time // the newest run's end
}

func newPasswordCommand(command []string, ttl time.Duration) *passwordCommand {
	return &passwordCommand{command: command, ttl: ttl, turn: make(chan struct{}, 1)}
}

// forget makes the next connect run the command again.
func (c *passwordCommand) forget() { c.refused.Store(true) }

// password returns the newest output of the command, or runs the command.
func (c *passwordCommand) password(ctx context.Context) (string, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-c.turn }()
	age := time.Since(c.ran)
	isFresh := c.failure == nil && age < c.ttl && !c.refused.Load()
	if !c.ran.IsZero() && (isFresh || age < commandPause) {
		return c.printed, c.failure
	}
	c.refused.Store(false)
	c.printed, c.failure = c.run(context.WithoutCancel(ctx)) // not cancelled with this caller, because others wait for the result, too
	c.ran = time.Now()
	return c.printed, c.failure
}

// run keeps the program's output out of every error.
func (c *passwordCommand) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	name := "password_command " + c.command[0]
	output := &bounded{}
	command := exec.Command(c.command[0], c.command[1:]...)
	command.Stdout = output
	command.WaitDelay = time.Second // for children that the program left behind
	running, err := child.StartGroup(command, syscall.SIGKILL)
	if err != nil {
		return "", fmt.Errorf("%s cannot be started: %w", name, err)
	}
	select {
	case <-running.Ended():
	case <-ctx.Done():
		_ = running.Signal(syscall.SIGKILL)
		<-running.Ended()
		return "", fmt.Errorf("%s did not end within %s", name, commandTimeout)
	}
	if output.tooLong {
		return "", fmt.Errorf("%s printed more than 64 KiB", name)
	}
	if err := running.Failure(); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(output.text.String(), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("%s printed nothing", name)
	}
	return password, nil
}

// bounded refuses too long an output, which ends the program. The buffer is not embedded, because io.Copy would
// then bypass Write.
type bounded struct {
	text    bytes.Buffer
	tooLong bool
}

func (b *bounded) Write(text []byte) (int, error) {
	if b.text.Len()+len(text) > longestPassword {
		b.tooLong = true
		return 0, io.ErrShortWrite
	}
	return b.text.Write(text)
}
