package pgpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Database is where the connections of a process lead, and how they log in. Host, port,
// database and parameters stay those of the first connection. User, password and
// certificates are read anew before each connect, because they may be replaced while
// the process runs.
type Database struct {
	read    func() (Login, error)
	command *passwordCommand // nil: the password is part of the login

	mu      sync.Mutex
	log     *slog.Logger
	refusal error     // of the newest connect; nil if it was not refused
	told    time.Time // when a refusal was logged last
	untold  int       // refusals since then
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
	// ErrNoLogin says that no connect was tried.
	ErrNoLogin = errors.New("there is no login for the database")
)

// Config is how to connect now.
func (d *Database) Config(ctx context.Context) (*pgxpool.Config, error) {
	config, err := d.config()
	if err != nil || d.command == nil {
		return config, err
	}
	if config.ConnConfig.Password, err = d.command.password(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	return config, nil
}

// config runs no command.
func (d *Database) config() (*pgxpool.Config, error) {
	login, err := d.read()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLogin, err)
	}
	config, err := pgxpool.ParseConfig(login.URL)
	if err != nil {
		return nil, ErrURL
	}
	if login.Password != "" {
		config.ConnConfig.Password = login.Password
	}
	return config, nil
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
	config, err := d.config()
	if err != nil {
		return ""
	}
	return config.ConnConfig.User
}

// BeforeConnect puts the login of this moment into a configuration that was made before.
func (d *Database) BeforeConnect(ctx context.Context, next *pgx.ConnConfig) error {
	now, err := d.Config(ctx)
	if err != nil {
		d.note(err)
		return err
	}
	fresh := now.ConnConfig
	next.User, next.Password = fresh.User, fresh.Password
	if !slices.Equal(places(next), places(fresh)) {
		d.warnElsewhere()
		return nil
	}
	next.TLSConfig, next.Fallbacks = fresh.TLSConfig, fresh.Fallbacks // with certificates that may be new
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

// Logging logs refusals from now on, one line a minute. It returns a logger for all that
// uses the database, which leaves out the lines that only say again that it is refused.
func (d *Database) Logging(log *slog.Logger) *slog.Logger {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = log
	return slog.New(unrepeated{log.Handler(), d})
}

// tellEvery keeps many connects that are refused from filling the log.
const tellEvery = time.Minute

// note remembers how a connect ended.
func (d *Database) note(err error) {
	refusal := refusalOf(err)
	if d.command != nil && errors.Is(refusal, ErrRefused) {
		d.command.forget()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.refusal
	d.refusal = refusal
	switch {
	case d.log == nil:
	case refusal != nil && time.Since(d.told) < tellEvery:
		d.untold++
	case refusal != nil:
		d.log.Error("cannot log in to the database; each connect tries again", "error", refusal, "not_logged_before", d.untold)
		d.told, d.untold = time.Now(), 0
	case err == nil && was != nil:
		d.log.Info("the database accepts the login again")
	}
}

func (d *Database) warnElsewhere() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.log != nil && time.Since(d.told) >= tellEvery {
		d.log.Warn("the database URL leads to another server or database now; restart to follow it")
		d.told = time.Now()
	}
}

// refusalOf is nil for a connect that ended well, and for one that no server answered.
// It leaves out the server's words, which name the user.
func refusalOf(err error) error {
	var refused *pgconn.PgError
	switch {
	case errors.Is(err, ErrRefused), errors.Is(err, ErrNoLogin), errors.Is(err, ErrURL):
		return err
	case errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28"): // "invalid authorization specification"
		return fmt.Errorf("%w (SQLSTATE %s)", ErrRefused, refused.Code)
	}
	var alert *net.OpError // crypto/tls keeps the type of an alert to itself
	if errors.As(err, &alert) && alert.Op == "remote error" {
		return fmt.Errorf("%w (TLS: %w)", ErrRefused, alert.Err)
	}
	return nil
}

// Refused tells a login that was refused from a server that did not answer.
func Refused(err error) bool { return errors.Is(refusalOf(err), ErrRefused) }

// unrepeated drops warnings whose error is a refused login. About ten lines a second would
// come otherwise, from every loop that needs the database. River's errors are text, which
// shows no cause: they are dropped while the login is refused.
type unrepeated struct {
	slog.Handler
	database *Database
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
			repeats = record.Level < slog.LevelError && refusalOf(err) != nil
		} else {
			repeats = u.database.Refusal() != nil
		}
		return false
	})
	return repeats
}

func (u unrepeated) WithAttrs(attrs []slog.Attr) slog.Handler {
	return unrepeated{u.Handler.WithAttrs(attrs), u.database}
}

func (u unrepeated) WithGroup(name string) slog.Handler {
	return unrepeated{u.Handler.WithGroup(name), u.database}
}
