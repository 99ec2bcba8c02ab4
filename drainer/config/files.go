package config

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"slices"
	"time"
)

// File is the configuration file itself, or a file that it refers to.
type File struct {
	Path    string
	Version Version // as it was read
}

// Version distinguishes contents of a file without showing them.
type Version struct {
	sum    [sha256.Size]byte
	absent bool // the file could not be read
	once   bool // the file is a pipe or a device, and a second read would return another content
}

// Current returns the version that the file has now. A pipe or a device keeps its version. If it has replaced a
// regular file, the file counts as absent.
func (f File) Current() Version {
	switch {
	case f.OnlyOnce():
		return f.Version
	case isReadOnce(f.Path):
		return Version{absent: true}
	}
	return versionOf(readWhole(f.Path))
}

// OnlyOnce reports that the file was a pipe or a device.
func (f File) OnlyOnce() bool { return f.Version.once }

func versionOf(content []byte, err error) Version {
	if err != nil {
		return Version{absent: true}
	}
	return Version{sum: sha256.Sum256(content)}
}

// isReadOnce recognises pipes and devices by their mode, because opening a pipe may block forever.
func isReadOnce(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// maxFile is far above any real configuration. It protects the memory if the path names a log by mistake, or a
// device that never ends.
const maxFile = 16 << 20

var (
	errHuge   = errors.New("it is larger than 16 MiB")
	errIsPipe = errors.New("it is a pipe or a device, which a running daemon does not read")
	errSilent = errors.New("it is a pipe or a device, and its text did not end within 30s")
)

// pipeWait is long enough to read a vault, or to ask a person for a passphrase.
const pipeWait = 30 * time.Second

// ReadFile reads the text of a file that the configuration or a flag names. The file may be a pipe, such as a shell's
// <(command).
func ReadFile(path string) ([]byte, error) {
	_, content, err := ReadToWatch(path)
	return content, err
}

// ReadToWatch reads a file as ReadFile does. It also returns the version that was read, for Watch.
func ReadToWatch(path string) (File, []byte, error) {
	file, content, err := (&sources{}).readAnew(path)
	return file, bytes.TrimPrefix(content, []byte(byteOrderMark)), err
}

// readWithin returns errSilent for a pipe without a writer. Such a pipe can block at the open already.
func readWithin(wait time.Duration, path string) ([]byte, error) {
	read := make(chan source, 1)
	go func() {
		content, err := readWhole(path)
		read <- source{content, err}
	}()
	select {
	case got := <-read:
		return got.content, got.err
	case <-time.After(wait):
		return nil, errSilent
	}
}

func readWhole(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		return nil, errHuge
	}
	return content, err
}

// sources holds the files that one configuration is read from. Each file is read once, so that two references to
// it get the same content.
type sources struct {
	files   []File
	read    map[string]source
	noPipes bool // refuse pipes and devices, because a read could block forever
}

type source struct {
	content []byte
	err     error
}

func (s *sources) readFile(path string) ([]byte, error) {
	if known, is := s.read[path]; is {
		return known.content, known.err
	}
	file, content, err := s.readAnew(path)
	s.files = append(s.files, file)
	s.read[path] = source{content, err}
	return content, err
}

func (s *sources) readAnew(path string) (file File, content []byte, err error) {
	switch {
	case !isReadOnce(path):
		content, err = readWhole(path)
		return File{path, versionOf(content, err)}, content, err
	case s.noPipes:
		return File{path, Version{absent: true}}, nil, errIsPipe
	}
	content, err = readWithin(pipeWait, path)
	return File{path, Version{once: true}}, content, err
}

// Cause is the reason why a configuration is read again.
type Cause string

// The causes.
const (
	Signal Cause = "signal" // the operator asked for it, whether or not a file has changed
	Change Cause = "change" // a file has changed
)

// Watch calls reload for each signal in asked. It also calls reload when a file has changed and all files then
// stayed the same for one interval, so that no half-written file is read. reload returns the files as it read
// them, and Watch compares with those from then on. So an invalid content is tried once. Watch returns when ctx
// ends.
//
// Watch compares contents at every interval. A Kubernetes volume changes through a symlink far above the file, and
// a watch on the file itself would miss that. A file that was rewritten with the same content has not changed.
func Watch(ctx context.Context, interval time.Duration, files []File, asked <-chan os.Signal, reload func(Cause) []File) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var unsteady []Version
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
			files, unsteady = reload(Signal), nil
		case <-ticker.C:
			read, now := make([]Version, len(files)), make([]Version, len(files))
			for i, file := range files {
				read[i], now[i] = file.Version, file.Current()
			}
			switch {
			case slices.Equal(now, read):
				unsteady = nil
			case !slices.Equal(now, unsteady):
				unsteady = now
			default:
				files, unsteady = reload(Change), nil
			}
		}
	}
}
