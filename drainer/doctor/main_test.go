package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// server is durable, as a healthy one is, unlike those that other tests use.
var server *throwaway.Server

const template = "doctor_template"

func TestMain(m *testing.M) {
	code, err := withServer(m.Run)
	if err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func withServer(run func() int) (code int, err error) {
	if server, err = throwaway.Start(context.Background(), throwaway.WithSettings(map[string]string{"max_connections": "200", "max_prepared_transactions": "2"})); err != nil {
		return 1, err
	}
	defer func() {
		err = errors.Join(err, server.Kill(), server.Stop()) // its data are not worth a checkpoint
	}()
	if err := administer("CREATE DATABASE " + template); err != nil {
		return 1, err
	}
	if _, err := migrations.Up(context.Background(), databaseURL(template)); err != nil {
		return 1, err
	}
	return run(), nil
}
