package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

//go:embed sandbox.yaml
var sandboxConfig string

// urlFile is named by the sandbox's configuration, which so outlives the
// server: the next sandbox has another port and another password.
const urlFile = "sandbox.url"

// Sandbox is a migrated database and a provider to try drainer with.
type Sandbox struct {
	Config   string // the path of a configuration that names both
	IsNew    bool   // Config was written just now; false: it was there, and is as it was
	Provider net.Addr

	database *database
	listener net.Listener
	urlPath  string
}

// OpenSandbox starts a throwaway Postgres, or makes a database of its own on the
// server at databaseURL, and writes drainer.yaml and sandbox.url into folder. It
// never overwrites a drainer.yaml. The provider is to listen on address.
func OpenSandbox(ctx context.Context, folder, address, databaseURL string) (*Sandbox, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{Config: filepath.Join(folder, "drainer.yaml"), urlPath: filepath.Join(folder, urlFile)}
	if err := s.open(ctx, address, databaseURL); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Sandbox) open(ctx context.Context, address, databaseURL string) (err error) {
	if s.listener, err = net.Listen("tcp", address); err != nil {
		return fmt.Errorf("serving the simulated provider: %w; choose another address with --listen", err)
	}
	s.Provider = s.listener.Addr()
	if s.database, err = openDatabase(ctx, databaseURL); err != nil {
		return err
	}
	if err := os.WriteFile(s.urlPath, []byte(s.database.url), 0o600); err != nil {
		return err
	}
	text := strings.NewReplacer("${env:DATABASE_URL}", "${file:"+s.urlPath+"}",
		"127.0.0.1:8080", s.Provider.String()).Replace(sandboxConfig)
	file, err := os.OpenFile(s.Config, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.IsNew = true
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// Serve serves the provider until ctx ends. The provider counts effects in
// memory and fails every third request.
func (s *Sandbox) Serve(ctx context.Context, seed uint64) error {
	return ServeProvider(ctx, s.listener, seed)
}

// Close ends the database with all that it holds. The configuration stays.
func (s *Sandbox) Close() error {
	var problems []error
	if s.listener != nil {
		_ = s.listener.Close() // the provider's end closed it
	}
	if s.database != nil {
		problems = append(problems, os.Remove(s.urlPath), s.database.close())
	}
	return errors.Join(problems...)
}
