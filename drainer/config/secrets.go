package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// resolver replaces aliases by their values and expands the references in every scalar. An anchor becomes known
// only after its value is resolved. So an alias cannot form a cycle, and a secret is not read twice.
type resolver struct {
	*reader
	anchors map[string]ast.Node
	at      path // of the value that is being resolved; an element of a list has the path of the list
}

func (r *resolver) resolve(node ast.Node) ast.Node {
	switch node := node.(type) {
	case *ast.MappingNode:
		for _, entry := range node.Values {
			r.resolveEntry(entry)
		}
	case *ast.MappingValueNode:
		r.resolveEntry(node)
	case *ast.SequenceNode:
		for i, element := range node.Values {
			node.Values[i] = r.resolve(element)
		}
	case *ast.AnchorNode:
		resolved := r.resolve(node.Value)
		r.anchors[node.Name.GetToken().Value] = resolved
		return resolved
	case *ast.AliasNode:
		return r.alias(node)
	case *ast.TagNode:
		r.report(*node.GetToken().Position, "YAML tags have no meaning here; leave it out")
		return r.resolve(node.Value)
	case *ast.StringNode:
		node.Value = r.expand(node, node.Value)
	case *ast.LiteralNode:
		node.Value.Value = r.expand(node, node.Value.Value)
	}
	return node
}

func (r *resolver) resolveEntry(entry *ast.MappingValueNode) {
	above := r.at
	r.at = above.child(keyName(entry.Key))
	entry.Value = r.resolve(entry.Value)
	r.at = above
	r.secrets.noteCredential(entry.Key.String(), entry.Value)
}

func (r *resolver) alias(node *ast.AliasNode) ast.Node {
	name := node.Value.GetToken().Value
	target, known := r.anchors[name]
	if !known {
		r.report(*node.GetToken().Position, "alias *"+name+" has no anchor &"+name+" before it")
		r.unresolved[node] = true
		return node
	}
	return target
}

func (r *resolver) expand(node ast.Node, text string) string {
	if isLogin(r.at) && strings.Contains(text, "${") {
		r.unresolved[node], r.later[node] = true, text
		return text
	}
	expanded, problems := r.secrets.expand(text)
	if r.secrets.later && len(problems) > 0 && !slices.ContainsFunc(problems, func(err error) bool { return !errors.Is(err, errLater) }) {
		r.unresolved[node], r.later[node] = true, text
		return text
	}
	for _, problem := range problems {
		r.report(*node.GetToken().Position, problem.Error())
		r.unresolved[node] = true
	}
	return expanded
}

var (
	errUnclosed  = errors.New("a reference opened with ${ is not closed; add }, or write $${ for a literal ${")
	errReference = errors.New("a reference is neither ${env:NAME} nor ${file:/path}; write $${ for a literal ${")
)

// secrets expands ${env:NAME} and ${file:/path} in a scalar. It remembers the values, so that they can be removed
// from messages.
type secrets struct {
	lookupEnv func(string) (string, bool)
	readFile  func(string) ([]byte, error)
	later     bool // no reference is read before its value is used
	revealed  []string

	// readUnwatched reads a file of the database's login, which is read again at each connect. If nil, readFile is
	// used.
	readUnwatched func(string) ([]byte, error)
}

// errLater is returned for a reference that was not read.
var errLater = errors.New("the reference is not read yet")

// expand replaces every reference in text. $${ is a literal ${, and an expanded value is not expanded again. Each
// error names a reference and the remedy, and never a value.
func (s *secrets) expand(text string) (string, []error) {
	var expanded strings.Builder
	var problems []error
	for {
		start := strings.Index(text, "${")
		if start < 0 {
			expanded.WriteString(text)
			return expanded.String(), problems
		}
		if strings.HasSuffix(text[:start], "$") {
			expanded.WriteString(text[:start-1] + "${")
			text = text[start+2:]
			continue
		}
		expanded.WriteString(text[:start])
		reference, rest, closed := strings.Cut(text[start+2:], "}")
		if !closed {
			return "", append(problems, errUnclosed)
		}
		value, err := s.value(reference)
		if err != nil {
			problems = append(problems, err)
		}
		expanded.WriteString(value)
		text = rest
	}
}

func (s *secrets) value(reference string) (string, error) {
	source, name, _ := strings.Cut(reference, ":")
	read, known := map[string]func(string) (string, error){"env": s.fromEnv, "file": s.fromFile}[source]
	switch {
	case !known:
		return "", errReference
	case s.later:
		return "", errLater
	}
	value, err := read(name)
	if err != nil {
		return "", err
	}
	s.revealed = append(s.revealed, value)
	return value, nil
}

func (s *secrets) fromEnv(name string) (string, error) {
	value, set := s.lookupEnv(name)
	switch {
	case name == "":
		return "", errors.New("${env:} names no variable; write ${env:NAME}")
	case !set:
		return "", fmt.Errorf("environment variable %s is not set; set it before starting drainer", name)
	case value == "":
		return "", fmt.Errorf("environment variable %s is empty; give it a value", name)
	}
	return value, nil
}

func (s *secrets) fromFile(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("${file:…} needs an absolute path, such as ${file:/run/secrets/token}")
	}
	content, err := s.readFile(path)
	if err != nil {
		return "", fmt.Errorf("secret file %s cannot be read (%s); mount it or correct the path", path, reason(err))
	}
	value := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(string(content), byteOrderMark), "\n"), "\r")
	if value == "" {
		return "", fmt.Errorf("secret file %s is empty; write the secret into it", path)
	}
	return value, nil
}

// reason leaves out the path in an error of the operating system, because the message already has it.
func reason(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// referencesIn lists the references in a text without their ${ and }, such as env:NAME.
func referencesIn(text string) (all []string) {
	for _, part := range strings.Split(text, "${")[1:] {
		if name, _, closed := strings.Cut(part, "}"); closed {
			all = append(all, name)
		}
	}
	return all
}

// settle expands a value that was left for later, now that its path is known. It returns false if the value stays
// unread: because it was reported, or because this command does not use it.
func (r *reader) settle(f field) bool {
	text, isLater := r.later[f.value]
	if !isLater {
		return false
	}
	if isLogin(f.path) {
		r.logins[f.path.String()] = Reference{text: text}
	}
	if r.isUnused(f.path) {
		unread := Unread{Path: f.path.String(), References: referencesIn(text)}
		if f.path[0] == "providers" {
			unread.Provider = f.path[1]
		}
		r.unread = append(r.unread, unread)
		return false
	}
	now := *r.secrets
	now.later = false
	if isLogin(f.path) && now.readUnwatched != nil {
		now.readFile = now.readUnwatched
	}
	expanded, problems := now.expand(text)
	r.secrets.revealed = now.revealed
	for _, problem := range problems {
		r.report(*f.value.GetToken().Position, problem.Error())
	}
	if len(problems) > 0 {
		return false
	}
	if isLogin(f.path) && namesPipe(text) {
		r.logins[f.path.String()] = Reference{text: text, once: expanded}
	}
	switch node := f.value.(type) {
	case *ast.StringNode:
		node.Value = expanded
	case *ast.LiteralNode:
		node.Value.Value = expanded
	}
	delete(r.unresolved, f.value)
	return true
}

// isUnused reports whether the command does not use the value at a path. Fields that decide how an intent may be
// treated, such as a class or the ttl of keys, are always used.
func (r *reader) isUnused(at path) bool {
	isAdapter := func(i int) bool {
		if len(at) <= i {
			return false
		}
		_, known := r.adapters[at[i]]
		return known
	}
	switch at[0] {
	case "pages":
		return r.secrets.later
	case "database":
		return !r.usesDatabase
	case "providers":
		return r.secrets.later && (len(at) > 2 && at[2] == "tls" || isAdapter(2) || len(at) > 2 && at[2] == "tools" && isAdapter(4))
	}
	return false
}

// noteCredential remembers values that the file itself contains: the value of a field with the name of a
// credential, a private key, and a URL with a password. It also remembers the text after a scheme such as Bearer.
// It ignores values of fewer than 8 bytes.
func (s *secrets) noteCredential(name string, value ast.Node) {
	var text string
	switch value := value.(type) {
	case *ast.StringNode:
		text = value.Value
	case *ast.LiteralNode:
		text = strings.TrimSpace(value.Value.Value) // without the line break at the end of a block, which no answer repeats
	case *ast.SequenceNode:
		if strings.HasSuffix(name, "_command") { // it names a program
			return
		}
		for _, element := range value.Values {
			s.noteCredential(name, element)
		}
		return
	}
	name = strings.ToLower(name)
	isCredential := slices.ContainsFunc([]string{"password", "secret", "token", "authorization", "api_key", "api-key", "apikey", "credential", "seed"},
		func(word string) bool { return strings.Contains(name, word) })
	if strings.Contains(text, "${") || !isCredential && !strings.Contains(text, "PRIVATE KEY-----") && !hasPassword(text) {
		return
	}
	if _, after, has := strings.Cut(text, " "); has && len(after) >= 8 {
		s.revealed = append(s.revealed, after)
	}
	if len(text) >= 8 {
		s.revealed = append(s.revealed, text)
	}
}

func hasPassword(text string) bool {
	address, err := url.Parse(text)
	if err != nil {
		return false
	}
	_, has := address.User.Password()
	return has
}

// redact removes secrets from messages that an adapter or a library wrote.
func (s *secrets) redact(message string) string {
	for _, value := range s.revealed {
		message = strings.ReplaceAll(message, value, "[secret]")
	}
	return message
}

// masked is like redact, but of an address with a password it hides the password alone.
func (s *secrets) masked(written string) string {
	for _, value := range s.revealed {
		mask := "[secret]"
		if address, err := url.Parse(value); err == nil && hasPassword(value) {
			mask = address.Redacted()
		}
		written = strings.ReplaceAll(written, value, mask)
	}
	return written
}

// Database says where the outbox is and how to log in there.
type Database struct {
	URL             Reference // not given if a flag or the environment sets it
	Password        Reference
	PasswordCommand []string
	PasswordTTL     time.Duration
}

// AsWritten leaves out the values that came from a pipe, because a pipe is read only once.
func (d Database) AsWritten() Database {
	d.URL.once, d.Password.once = "", ""
	return d
}

// Reference is text with references such as ${file:/path}, which are read at each use of the value.
type Reference struct {
	text string
	once string // the value, if it came from a pipe
}

// NewReference returns the Reference for a text as it is written in a file.
func NewReference(text string) Reference { return Reference{text: text} }

// IsGiven reports whether there is a text.
func (r Reference) IsGiven() bool { return r.text != "" }

// Read returns the present value.
func (r Reference) Read() (string, error) {
	if r.once != "" {
		return r.once, nil
	}
	value, problems := (&secrets{lookupEnv: os.LookupEnv, readFile: readTogether(true)}).expand(r.text)
	return value, errors.Join(problems...)
}

// isLogin reports whether the field at a path is read again at each connect.
func isLogin(at path) bool {
	return len(at) == 2 && at[0] == "database" && (at[1] == "url" || at[1] == "password")
}

// readTogether returns a function that reads each file once, even if several references name it. The files are not
// watched.
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

// login returns the field as it is written. A value without references is escaped, so that it is not expanded.
func (r *reader) login(at, value string) Reference {
	if written, is := r.logins[at]; is {
		return written
	}
	return Reference{text: strings.ReplaceAll(value, "${", "$${")}
}
