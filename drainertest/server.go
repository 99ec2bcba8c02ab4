package drainertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

const setUpTimeout = 5 * time.Minute

// parameters suit many short-lived databases whose loss does not matter.
var parameters = map[string]string{
	"fsync":              "off",
	"synchronous_commit": "off",
	"full_page_writes":   "off",
	"max_connections":    "500",
}

// server is where databases are created, each a copy of the template.
type server struct {
	url      string
	template string
	stop     func() error
}

func startServer() (server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	s, err := chooseServer(ctx)
	if err != nil {
		return server{}, err
	}
	if err := s.createTemplate(ctx); err != nil {
		return server{}, errors.Join(err, s.stop())
	}
	return s, nil
}

func chooseServer(ctx context.Context) (server, error) {
	if given := os.Getenv("TEST_DATABASE_URL"); given != "" {
		return server{url: given, stop: func() error { return nil }}, nil
	}
	image, noImage := findImage(ctx)
	if noImage == nil {
		return startContainer(ctx, image)
	}
	local, err := throwaway.Start(ctx, throwaway.WithSettings(parameters))
	if err != nil {
		return server{}, fmt.Errorf("no Postgres to test with; set TEST_DATABASE_URL, or start Docker, or install postgresql 15 or later:\n%w",
			errors.Join(noImage, err))
	}
	return server{url: local.URL, stop: local.Stop}, nil
}

func (s *server) createTemplate(ctx context.Context) error {
	template := newName()
	if err := s.execute(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	url, err := s.databaseURL(template)
	if err != nil {
		return err
	}
	s.template = template
	if _, err := migrations.Up(ctx, url); err != nil {
		return errors.Join(err, s.dropTemplate(ctx))
	}
	return nil
}

func (s *server) dropTemplate(ctx context.Context) error {
	return s.execute(ctx, "DROP DATABASE "+s.template+" WITH (FORCE)")
}

func (s *server) close() error {
	return errors.Join(s.dropTemplate(context.Background()), s.stop())
}
