package demo

import (
	"context"
	_ "embed"
	"errors"
	"os"
	"path/filepath"
)

// drainerConfig is what both drainers run with. Addresses come from their
// environment.
//
//go:embed drainer.yaml
var drainerConfig []byte

// stage is everything that a demo starts and must end again.
type stage struct {
	Options
	dir      string
	database *database
	provider *provider
	pager    *pager
	fleet    *fleet
}

// build returns a stage to clear even where it fails.
func build(ctx context.Context, options Options) (*stage, error) {
	s := &stage{Options: options, fleet: &fleet{program: options.Drainer}}
	var err error
	if s.dir, err = os.MkdirTemp("", "drainer-demo-"); err != nil {
		return s, err
	}
	if options.DatabaseURL == "" {
		s.Screen.Say("Starting a throwaway Postgres")
	} else {
		s.Screen.Say("Creating a database of its own on your server")
	}
	if s.database, err = openDatabase(ctx, options.DatabaseURL); err != nil {
		return s, err
	}
	if s.provider, err = serveProvider(filepath.Join(s.dir, "ledger.jsonl"), options.Seed); err != nil {
		return s, err
	}
	s.Screen.Say("A provider runs that is slow, throttles, fails and hangs up, before and after it acted")
	if s.pager, err = servePager(func(summary string) { s.Screen.Say("A page: " + summary) }); err != nil {
		return s, err
	}
	s.fleet.logs, s.fleet.config = s.dir, filepath.Join(s.dir, "drainer.yaml")
	s.fleet.environment = []string{
		"DATABASE_URL=" + s.database.url, "DEMO_PROVIDER_URL=" + s.provider.url,
		"DEMO_PAGER_URL=" + s.pager.url, "DEMO_PAGER_SECRET=" + s.pager.secret,
	}
	return s, os.WriteFile(s.fleet.config, drainerConfig, 0o600)
}

// clear ends what was started, the newest first.
func (s *stage) clear() error {
	problems := []error{s.fleet.kill()}
	if s.pager != nil {
		problems = append(problems, s.pager.close())
	}
	if s.provider != nil {
		problems = append(problems, s.provider.close())
	}
	if s.database != nil {
		problems = append(problems, s.database.close())
	}
	if s.dir != "" {
		problems = append(problems, os.RemoveAll(s.dir))
	}
	return errors.Join(problems...)
}
