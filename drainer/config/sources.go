package config

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
)

// File is one that a configuration was read from: the file that --config names,
// or one that it refers to.
type File struct {
	Path    string
	Version Version // that was read
}

// Version tells contents of a file apart without showing them.
type Version struct {
	sum    [sha256.Size]byte
	absent bool // it could not be read
	once   bool // a pipe or a device: reading it again would bring something else
}

// Current is the version that is there now. What could be read only once stays
// as it is, and such a thing in the place of a file is as good as none.
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

// isReadOnce spares a pipe the second reading, which might never end.
func isReadOnce(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// maxFile is far above what anybody configures with: a log that was named by
// mistake, or a device that never ends, must not fill the memory.
const maxFile = 16 << 20

var (
	errHuge   = errors.New("it is larger than 16 MiB")
	errIsPipe = errors.New("it is a pipe or a device, which a running daemon does not read")
)

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

// sources are the files that one configuration is read from. Each is read once,
// so that two references to it cannot mean two contents.
type sources struct {
	files   []File
	read    map[string]source
	noPipes bool // who waits for one to be written to would wait for ever
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
	content, err = readWhole(path)
	return File{path, Version{once: true}}, content, err
}
