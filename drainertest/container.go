package drainertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

const (
	defaultImage    = "postgres:17-alpine"
	dockerTimeout   = 3 * time.Second // to answer at all
	registryTimeout = 5 * time.Second // to answer at all
	dataFolder      = "/pgdata"       // in memory: a container's disk is many times slower
	readyPoll       = 50 * time.Millisecond
	readyTimeout    = time.Minute
	dialTimeout     = time.Second

	// A container whose test binary was killed ends by itself after these
	// seconds, and Docker removes it. That spares the reaper and its image.
	lifetime = "3600"
)

// findImage returns the image to run. It asks for it on the machine first, and
// fails at once where no registry answers.
func findImage(ctx context.Context) (string, error) {
	tclog.SetDefault(tclog.NewNoopLogger())
	image := cmp.Or(os.Getenv("TEST_POSTGRES_IMAGE"), defaultImage)
	return image, ensureImage(ctx, image)
}

func startContainer(ctx context.Context, image string) (server, error) {
	password := rand.Text()
	postgres, err := testcontainers.Run(ctx, image,
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": password, "PGDATA": dataFolder + "/data"}),
		testcontainers.WithTmpfs(map[string]string{dataFolder: "rw"}),
		testcontainers.WithEntrypoint("timeout", lifetime, "docker-entrypoint.sh"),
		testcontainers.WithCmd(postgresCommand()...),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { host.AutoRemove = true }),
	)
	stop := func() error {
		return testcontainers.TerminateContainer(postgres, testcontainers.StopTimeout(0))
	}
	if err != nil {
		return server{}, errors.Join(fmt.Errorf("starting a container of %s: %w", image, err), stop())
	}
	databaseURL, err := awaitContainer(ctx, postgres, password)
	if err != nil {
		return server{}, errors.Join(fmt.Errorf("waiting for the container of %s: %w", image, err), stop())
	}
	return server{url: databaseURL, stop: stop}, nil
}

func ensureImage(ctx context.Context, image string) error {
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		return err
	}
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("no Docker: %w", err)
	}
	defer docker.Close()
	if err := within(ctx, dockerTimeout, func(ctx context.Context) error {
		_, err := docker.Ping(ctx, client.PingOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("no Docker: %w", err)
	}
	if _, err := docker.ImageInspect(ctx, image); err == nil {
		return nil
	}
	if err := within(ctx, registryTimeout, func(ctx context.Context) error {
		_, err := docker.DistributionInspect(ctx, image, client.DistributionInspectOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("no image %s in Docker, and no registry to pull it from: %w", image, err)
	}
	pull, err := docker.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return fmt.Errorf("pulling %s: %w", image, err)
	}
	defer pull.Close()
	_, err = io.Copy(io.Discard, pull)
	return err
}

func postgresCommand() []string {
	command := []string{"postgres"}
	for name, value := range parameters {
		command = append(command, "-c", name+"="+value)
	}
	return command
}

// awaitContainer returns the URL once it connects. The image initialises with
// a server that listens on no port, so the first connection is to the real one.
func awaitContainer(ctx context.Context, postgres *testcontainers.DockerContainer, password string) (string, error) {
	host, err := postgres.Host(ctx)
	if err != nil {
		return "", err
	}
	port, err := postgres.MappedPort(ctx, "5432/tcp")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// Tests in a container reach the port at Docker's gateway if Docker runs
	// outside, and at the loopback if it runs beside them.
	return firstToConnect(ctx, containerURL("127.0.0.1", port.Port(), password), containerURL(host, port.Port(), password))
}

func containerURL(host, port, password string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password),
		Host: net.JoinHostPort(host, port), Path: "postgres", RawQuery: "sslmode=disable",
	}).String()
}

func firstToConnect(ctx context.Context, candidates ...string) (string, error) {
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		var failures []error
		for _, candidate := range candidates {
			err := within(ctx, dialTimeout, func(ctx context.Context) error { return connect(ctx, candidate) })
			if err == nil {
				return candidate, nil
			}
			failures = append(failures, err)
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(append(failures, ctx.Err())...)
		case <-poll.C:
		}
	}
}

func connect(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx)
}
