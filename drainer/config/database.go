package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Database says where the outbox is, and how to log in there.
type Database struct {
	URL             Reference // not given where the file leaves it to a flag or the environment
	Password        Reference
	PasswordCommand []string
	PasswordTTL     time.Duration
}

// Equal compares them as they are written.
func (d Database) Equal(other Database) bool {
	return d.URL.text == other.URL.text && d.Password.text == other.Password.text &&
		slices.Equal(d.PasswordCommand, other.PasswordCommand) && d.PasswordTTL == other.PasswordTTL
}

// Reference is text with references such as ${file:/path}, which are read each time that
// its value is used.
type Reference struct {
	text string
	once string // the value, if it came from a pipe
}

// NewReference takes the text as it would be written in a file.
func NewReference(text string) Reference { return Reference{text: text} }

// IsGiven reports that there is a text.
func (r Reference) IsGiven() bool { return r.text != "" }

// Read is the value now.
func (r Reference) Read() (string, error) {
	if r.once != "" {
		return r.once, nil
	}
	value, problems := (&secrets{lookupEnv: os.LookupEnv, readFile: readTogether(true)}).expand(r.text)
	return value, errors.Join(problems...)
}

// isLogin names the fields that are read again at each connect.
func isLogin(at path) bool {
	return len(at) == 2 && at[0] == "database" && (at[1] == "url" || at[1] == "password")
}

// readTogether reads a file once, however many references name it, and has it not watched.
func readTogether(noPipes bool) func(string) ([]byte, error) {
	return (&sources{read: map[string]source{}, noPipes: noPipes}).readFile
}

func namesPipe(text string) bool {
	return slices.ContainsFunc(referencesIn(text), func(reference string) bool {
		file, isFile := strings.CutPrefix(reference, "file:")
		return isFile && isReadOnce(file)
	})
}

func (r *reader) database(block databaseBlock) Database {
	at := path{"database"}
	command := at.child("password_command")
	switch {
	case block.PasswordCommand == nil:
	case len(block.PasswordCommand) == 0 || block.PasswordCommand[0] == "":
		r.reject(command, "must name a program")
	case block.Password != "" || r.logins["database.password"].IsGiven():
		r.reject(command, "and database.password are both given; keep one")
	case strings.Contains(block.PasswordCommand[0], "/") && !filepath.IsAbs(block.PasswordCommand[0]):
		r.reject(command, "give the program's absolute path, or its name alone if it is on the PATH")
	}
	if block.PasswordTTL < time.Second || block.PasswordTTL > time.Hour {
		r.reject(at.child("password_ttl"), "must be from 1s to 1h")
	}
	return Database{
		URL:             r.login("database.url", block.URL),
		Password:        r.login("database.password", block.Password),
		PasswordCommand: block.PasswordCommand,
		PasswordTTL:     block.PasswordTTL,
	}
}

// login is the value of a field as it is written. One without references stands for itself.
func (r *reader) login(at, value string) Reference {
	if written, is := r.logins[at]; is {
		return written
	}
	return Reference{text: strings.ReplaceAll(value, "${", "$${")}
}
