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

// Database is where the connections of a process lead, and how they log in. Host, port,
// database and parameters stay those of the first connection. User, password and
// certificates are read again before each connect, because they may be replaced while
// the process runs.
type Database struct {
	read    func() (Login, error)
	command *passwordCommand // nil: the password is part of the login

	mu        sync.Mutex
	here      *pgxpool.Config // the last login for the place of the first
	log       *slog.Logger
	refusal   error     // nil if the newest answer was none
	decidedAt time.Time // when the connect began that was let in or refused last; of a statement, when it ended
	away      bool      // the newest connect failed, and was not refused

	refusals, outages logged // apart: the one says nothing of the other

	loggedAway bool // and no connect has ended well since

	refusedLater atomic.Bool // a statement was refused, and none has ended well since

	loggedMoved time.Time // when it was logged last that the URL leads elsewhere
}

// Login was read at one time.
type Login struct {
	URL      string
	Password string // instead of the one in the URL, if it is not empty
}

// NewDatabase reads its login by read, before each connect. If command is not empty, it
// prints the password; what it printed is used again for ttl.
func NewDatabase(read func() (Login, error), command []string, ttl time.Duration) *Database {
	d := &Database{read: read}
	if len(command) > 0 {
		d.command = newPasswordCommand(command, ttl)
	}
	return d
}

// At is a database whose URL never changes.
func At(url string) *Database {
	return NewDatabase(func() (Login, error) { return Login{URL: url}, nil }, nil, 0)
}

var (
	// ErrURL stands alone where a URL cannot be parsed: the parser's own words may repeat
	// a password.
	ErrURL = errors.New("the database URL cannot be read; write postgres://user:password@host:5432/database, with special characters escaped, and check the certificates that it names")
	// ErrRefused says that a server answered, and does not let this login in.
	ErrRefused = errors.New("the database refuses this login")
	// ErrPooler says that PgBouncer does not come through to the server. It does not tell a login that the server
	// refuses from a server that is away.
	ErrPooler = errors.New("the pooler cannot log in at the database, or the database is away: the pooler's log says why")
	// ErrNoLogin says that no connect was tried.
	ErrNoLogin = errors.New("there is no login for the database")
)

// Config is how to connect now.
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

// config runs no command. Where the URL leads to another server or database than before, the last login for the old
// place is given: a process belongs to one outbox, and the old server must not be shown the new one's password.
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
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // what pgx reads and writes; poolers take it too
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

// URL is that of this moment.
func (d *Database) URL() (string, error) {
	login, err := d.read()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	return login.URL, nil
}

// User is whom the login is for; empty if that cannot be said.
func (d *Database) User() string {
	config, _, err := d.config()
	if err != nil {
		return ""
	}
	return config.ConnConfig.User
}

// BeforeConnect puts the login of this moment into a configuration that was made before.
func (d *Database) BeforeConnect(ctx context.Context, next *pgx.ConnConfig) error {
	now, err := d.Config(ctx)
	if err != nil {
		d.connected(time.Now(), err)
		return err
	}
	fresh := now.ConnConfig
	next.User, next.Password = fresh.User, fresh.Password
	next.TLSConfig, next.Fallbacks = fresh.TLSConfig, fresh.Fallbacks // with certificates that may be new
	next.BuildFrontend = fresh.BuildFrontend
	return nil
}

// places are the hosts, ports and the database that a configuration leads to.
func places(config *pgx.ConnConfig) []string {
	all := []string{config.Database, fmt.Sprintf("%s:%d", config.Host, config.Port)}
	for _, fallback := range config.Fallbacks {
		all = append(all, fmt.Sprintf("%s:%d", fallback.Host, fallback.Port))
	}
	return slices.Compact(all) // one place may be tried with TLS and without
}

// Refusal is why the newest connect was refused before the server let this login in; nil
// if it was let in, or if no server answered.
func (d *Database) Refusal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refusal
}

// Logging logs connects that fail from now on, one line a minute. It returns a logger for all that
// uses the database, which leaves out the lines that only say the same again.
func (d *Database) Logging(log *slog.Logger) *slog.Logger {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = log
	return slog.New(unrepeated{Handler: log.Handler(), database: d})
}

// logEvery keeps many connects that are refused from filling the log.
const logEvery = time.Minute

// connected notes how a connect ended. A transaction pooler lets a client in before it has logged in at the server, so
// that a connect which ends well takes back no refusal that a statement met.
func (d *Database) connected(start time.Time, err error) {
	if !d.refusedLater.Load() || refusalOf(err) != nil {
		d.note(start, err)
	}
}

// answered notes how a statement ended.
func (d *Database) answered(err error) {
	switch {
	case refusalOf(err) != nil:
		d.refusedLater.Store(true)
		d.note(time.Now(), err)
	case err == nil && d.refusedLater.CompareAndSwap(true, false):
		d.note(time.Now(), nil)
	}
}

// note remembers what the newest answer says of the login. Of several connects at once the one that began last counts,
// because it has the newest login.
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

// logged is when a cause was logged last, and how many of its failures were left out since.
type logged struct {
	at      time.Time
	leftOut int
}

// line says whether it logged one.
func (l *logged) line(log *slog.Logger, message string, err error) bool {
	if time.Since(l.at) < logEvery {
		l.leftOut++
		return false
	}
	log.Error(message, "error", err, "not_logged_before", l.leftOut)
	*l = logged{at: time.Now()}
	return true
}

// isAway tells a connect that met no server, or one that starts or stops, from a statement that failed, and from a
// connect that this process gave up as it ends.
func isAway(err error) bool {
	var failed *pgconn.ConnectError
	return errors.As(err, &failed) && refusalOf(err) == nil && !errors.Is(err, context.Canceled)
}

// refusalOf is nil for a connect that ended well, and for one that no server answered.
// It leaves out the server's words, which name the user.
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
	var alert *net.OpError // crypto/tls keeps the type of an alert to itself
	if errors.As(err, &alert) && alert.Op == "remote error" {
		return fmt.Errorf("%w (TLS: %w)", ErrRefused, alert.Err)
	}
	return nil
}

// readRefusals has pgx read a server's answer even where the server hung up before pgx could write. With TLS 1.3 a server
// refuses a client's certificate after the client's part of the handshake has ended, and closes the connection: the
// first write then fails with a reset, while the alert that says why waits to be read.
func readRefusals(reader io.Reader, writer io.Writer) *pgproto3.Frontend {
	return pgproto3.NewFrontend(reader, &firstWrite{writer: writer})
}

// firstWrite leaves it to the read that follows the startup message to tell that the server hung up.
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

// protocolViolation is the code that PgBouncer gives to its own refusals, all of them before 1.19.
const protocolViolation = "08P01"

// isPoolers also recognises the server's refusal where PgBouncer repeats it.
func isPoolers(refused *pgconn.PgError) bool {
	return refused.Code == protocolViolation && slices.ContainsFunc(
		[]string{"SASL authentication failed", "password authentication failed", "login rejected", "no such user"},
		func(words string) bool { return strings.Contains(refused.Message, words) })
}

// Refused tells a login that was refused from a server that did not answer.
func Refused(err error) bool { return errors.Is(refusalOf(err), ErrRefused) }

// unrepeated drops warnings whose error is a refused login or a server that does not answer. About ten lines a second
// would come otherwise, from every loop that needs the database. River's errors are text: they are dropped while the
// login is refused, and those of a connect while no server answers. The daemon's own lines stay: the text in theirs is
// the class of an attempt's error.
type unrepeated struct {
	slog.Handler
	database *Database
	asText   bool // these are lines of a library that gives its errors as text
}

// ErrorsAsText is for the log of a library that gives its errors as text, as River does. It returns the handler of a log
// that Logging made, and any other handler as it is.
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
	// commandTimeout is far above what the programs of clouds take, even on a slow machine.
	commandTimeout = 15 * time.Second
	// longestPassword is above any token; Postgres itself takes no longer ones.
	longestPassword = 64 << 10
	// commandPause is the least time between two runs: many connects may fail at once.
	commandPause = time.Second
)

// passwordCommand gets passwords from a program. It runs once at a time, for all
// connections of the process. Neither its output nor its arguments are ever shown.
type passwordCommand struct {
	command []string
	ttl     time.Duration
	refused atomic.Bool // the newest password was; another run may print another

	turn    chan struct{} // held to read or write what follows
	printed string
	failure error
	ran     time.Time // the newest run's end
}

func newPasswordCommand(command []string, ttl time.Duration) *passwordCommand {
	return &passwordCommand{command: command, ttl: ttl, turn: make(chan struct{}, 1)}
}

// forget has the next connect run the command again.
func (c *passwordCommand) forget() { c.refused.Store(true) }

// password returns the newest output of the command, or runs it.
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
	c.printed, c.failure = c.run(context.WithoutCancel(ctx)) // others wait for its result, too
	c.ran = time.Now()
	return c.printed, c.failure
}

// run leaves out what the program printed from every error.
func (c *passwordCommand) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	name := "password_command " + c.command[0]
	output := &bounded{}
	command := exec.Command(c.command[0], c.command[1:]...)
	command.Stdout = output
	command.WaitDelay = time.Second // for what it started and left behind
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

// bounded refuses too much, which ends the program that writes it. The buffer is not
// embedded, because io.Copy would fill it past Write.
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
