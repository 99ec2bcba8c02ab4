package throwaway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

var errNoBinaries = errors.New("no Postgres binaries on PATH or in the usual folders; install the package postgresql (15 or later)")

// usualFolders are where Debian, Red Hat, Homebrew and Postgres.app install.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findBinaries returns the folder of initdb and postgres.
func findBinaries(ctx context.Context) (string, error) {
	for _, folder := range installed() {
		if complete(folder) {
			return folder, nil
		}
	}
	if os.Geteuid() == 0 {
		return "", errNoBinaries // a download into root's home would be out of its owner's reach
	}
	folder, err := download(ctx)
	if err != nil {
		return "", errors.Join(errNoBinaries, err)
	}
	return folder, nil
}

// installed lists candidates, the newest version of each distribution first.
func installed() []string {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, pattern := range usualFolders {
		found, _ := filepath.Glob(pattern)
		slices.Reverse(found)
		folders = append(folders, found...)
	}
	return folders
}

func complete(folder string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(folder, program)); err != nil {
			return false
		}
	}
	return true
}

// download fetches binaries into the user's cache, once. The library fetches
// only when it starts a server, so it starts one and stops it.
func download(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "drainer", "postgres-"+string(embeddedpostgres.V17))
	folder := filepath.Join(home, "bin")
	if complete(folder) {
		return folder, nil
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp("", "drainer-postgres-download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().Version(embeddedpostgres.V17).
		Port(uint32(port)).CachePath(scratch).RuntimePath(filepath.Join(scratch, "run")).BinariesPath(home).
		StartTimeout(startTimeout).Logger(io.Discard))
	if err := server.Start(); err != nil {
		return "", fmt.Errorf("downloading Postgres: %w", err)
	}
	if err := server.Stop(); err != nil {
		return "", fmt.Errorf("stopping the downloaded Postgres: %w", err)
	}
	return folder, ctx.Err()
}
