package exec

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

const defaultStartTimeout = 10 * time.Second

// Settings is the provider's `exec` block.
type Settings struct {
	Command      []string          `yaml:"command" jsonschema:"required,minItems=1" jsonschema_description:"The program and its arguments, without a shell. On the PATH, or absolute."`
	Env          map[string]string `yaml:"env,omitempty" jsonschema_description:"The program's environment, beside PATH, HOME, LANG, TMPDIR and TZ."`
	Directory    string            `yaml:"directory,omitempty" jsonschema_description:"Where the program runs, absolute. Default: drainer's own directory."`
	StartTimeout time.Duration     `yaml:"start_timeout,omitempty" jsonschema:"default=10s" jsonschema_description:"The longest wait for its hello."`
	MaxMessage   int               `yaml:"max_message,omitempty" jsonschema:"minimum=1024,default=1048576" jsonschema_description:"The longest line of the program, in bytes. A longer one ends it."`
	Stderr       string            `yaml:"stderr,omitempty" jsonschema:"enum=pass,enum=discard,default=pass" jsonschema_description:"pass copies the program's stderr to drainer's, with the provider's name before each line."`
}

// Tool is a tool's `exec` block, which has no settings. The program needs only the operation's name.
type Tool struct{}

func newSettings(spec dispatch.Spec) (Settings, error) {
	var settings Settings
	problems := protocol.Configure(spec, &settings)
	settings.StartTimeout = cmp.Or(settings.StartTimeout, defaultStartTimeout)
	problems = append(problems, protocol.CheckMaxMessage(&settings.MaxMessage), settings.checkCommand(), settings.checkEnv(), settings.checkRest())
	return settings, errors.Join(problems...)
}

func (s *Settings) checkCommand() error {
	switch {
	case len(s.Command) == 0 || s.Command[0] == "":
		return errors.New("command is missing")
	case slices.ContainsFunc(s.Command, holdsNUL):
		return errors.New("command: an argument holds a NUL")
	case strings.Contains(s.Command[0], "/") && !filepath.IsAbs(s.Command[0]):
		return errors.New("command: give the program's absolute path, or its name alone if it is on the PATH")
	}
	return nil
}

func (s *Settings) checkEnv() error {
	var problems []error
	for name, value := range s.Env {
		switch {
		case name == "" || strings.Contains(name, "=") || holdsNUL(name):
			problems = append(problems, errors.New("env: a name is empty, or holds a NUL or ="))
		case holdsNUL(value):
			problems = append(problems, fmt.Errorf("env: the value of %s holds a NUL", name))
		}
	}
	return errors.Join(problems...)
}

func (s *Settings) checkRest() error {
	var problems []error
	if s.Directory != "" && !filepath.IsAbs(s.Directory) {
		problems = append(problems, errors.New("directory is not absolute"))
	}
	if s.StartTimeout < 0 {
		problems = append(problems, errors.New("start_timeout is negative"))
	}
	if s.Stderr != "" && s.Stderr != "pass" && s.Stderr != "discard" {
		problems = append(problems, errors.New("stderr is neither pass nor discard"))
	}
	return errors.Join(problems...)
}

func holdsNUL(text string) bool { return strings.ContainsRune(text, 0) }

// inherited are the variables that a program needs to start and that contain no secrets. The program does not get
// DATABASE_URL and the other variables of drainer. So it cannot pass them on by accident, although it could read
// them in /proc.
var inherited = []string{"PATH", "HOME", "LANG", "TMPDIR", "TZ"}

// environment makes the program's environment. The configured variables come last and override the inherited ones.
func environment(configured map[string]string) []string {
	variables := []string{}
	for _, name := range inherited {
		if value, set := os.LookupEnv(name); set {
			variables = append(variables, name+"="+value)
		}
	}
	for name, value := range configured {
		variables = append(variables, name+"="+value)
	}
	slices.Sort(variables[len(variables)-len(configured):])
	return variables
}
