package config

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

var (
	errUnclosed  = errors.New("a reference opened with ${ is not closed; add }, or write $${ for a literal ${")
	errReference = errors.New("a reference is neither ${env:NAME} nor ${file:/path}; write $${ for a literal ${")
)

// secrets expands ${env:NAME} and ${file:/path} in a scalar, and remembers
// what it put in, so that no message repeats it.
type secrets struct {
	lookupEnv func(string) (string, bool)
	readFile  func(string) ([]byte, error)
	revealed  []string
}

// expand replaces every reference in text. $${ stands for a literal ${, and an
// expanded value is not expanded again. Each error names a reference and its
// cure, never a value.
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
	var value string
	var err error
	switch source {
	case "env":
		value, err = s.fromEnv(name)
	case "file":
		value, err = s.fromFile(name)
	default:
		return "", errReference
	}
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
	value := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if value == "" {
		return "", fmt.Errorf("secret file %s is empty; write the secret into it", path)
	}
	return value, nil
}

// reason is the operating system's word, without the path that the message
// already has.
func reason(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// redact is the last guard for messages written by others, an adapter's say.
func (s *secrets) redact(message string) string {
	for _, value := range s.revealed {
		message = strings.ReplaceAll(message, value, "[secret]")
	}
	return message
}
