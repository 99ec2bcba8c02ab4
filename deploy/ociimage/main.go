// Package main builds the container image for both architectures from the archives in dist/, as one index in the
// OCI layout, and its SBOMs. It needs neither Docker nor a registry. The same commit and the same authorities give
// the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

var architectures = []string{"amd64", "arm64"}

// build is one run of this program.
type build struct {
	dist              string // the folder that goreleaser filled
	version, revision string
	created           time.Time // of the commit
	authorities       []byte    // the certificate authorities for TLS to providers, as PEM
}

func main() {
	var b build
	var created, certificates string
	flag.StringVar(&b.dist, "dist", "../dist", "the folder of the archives")
	flag.StringVar(&b.version, "version", "", "the version in their names")
	flag.StringVar(&b.revision, "revision", "", "the commit")
	flag.StringVar(&created, "created", "", "the time of the commit, as in RFC 3339")
	flag.StringVar(&certificates, "certificates", "/etc/ssl/certs/ca-certificates.crt", "the authorities, as PEM")
	flag.Parse()
	err := func() (err error) {
		if b.created, err = time.Parse(time.RFC3339, created); err != nil {
			return fmt.Errorf("-created: %w", err)
		}
		if b.authorities, err = os.ReadFile(certificates); err != nil {
			return fmt.Errorf("-certificates: %w", err)
		}
		return b.run()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the image cannot be made:", err)
		os.Exit(1)
	}
}

func (b build) run() error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		image, err := b.image(architecture)
		if err != nil {
			return fmt.Errorf("image of %s: %w", architecture, err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: architecture}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
		if err := b.describe(architecture); err != nil {
			return fmt.Errorf("list of what is in the image of %s: %w", architecture, err)
		}
	}
	return b.write(index)
}

// image has the same files and configuration as deploy/Containerfile.
func (b build) image(architecture string) (v1.Image, error) {
	program, err := b.program(architecture)
	if err != nil {
		return nil, err
	}
	layer, err := b.layer(program)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: b.created}}}); err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = architecture, "linux", v1.Time{Time: b.created}
	file.Config = v1.Config{
		User: "65532:65532", Env: []string{"DRAINER_LISTEN=:9464"}, ExposedPorts: map[string]struct{}{"9464/tcp": {}},
		Entrypoint: []string{"/drainer"}, Cmd: []string{"run", "--config", "/etc/drainer/drainer.yaml"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "drainer",
			"org.opencontainers.image.description": "Turns intents that agents commit in Postgres into effects, once",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      "https://github.com/agentoutbox/drainer",
			"org.opencontainers.image.version":     b.version,
			"org.opencontainers.image.revision":    b.revision,
		},
	}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("set the configuration: %w", err)
	}
	return image, nil
}

// program reads the daemon from its archive, so that image and archive contain the same binary.
func (b build) program(architecture string) ([]byte, error) {
	archive, err := os.Open(filepath.Join(b.dist, fmt.Sprintf("drainer_%s_linux_%s.tar.gz", b.version, architecture)))
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	defer func() { _ = archive.Close() }() // a failed Close of a file that was only read does not matter
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	for files := tar.NewReader(unzipped); ; {
		file, err := files.Next()
		if err != nil {
			return nil, fmt.Errorf("find the program in the archive: %w", err)
		}
		if path.Base(file.Name) == "drainer" && file.Typeflag == tar.TypeReg && file.FileInfo().Mode()&0o111 != 0 {
			program, err := io.ReadAll(files)
			if err != nil {
				return nil, fmt.Errorf("read the program: %w", err)
			}
			return program, nil
		}
	}
}

func (b build) layer(program []byte) (v1.Layer, error) {
	var text bytes.Buffer
	files := tar.NewWriter(&text)
	for _, file := range []struct {
		name    string
		mode    int64
		content []byte
	}{{"etc/ssl/certs/ca-certificates.crt", 0o644, b.authorities}, {"drainer", 0o755, program}} {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: file.mode, Size: int64(len(file.content)), ModTime: b.created}
		if err := errors.Join(files.WriteHeader(header), writeAll(files, file.content)); err != nil {
			return nil, fmt.Errorf("write %s: %w", file.name, err)
		}
	}
	if err := files.Close(); err != nil {
		return nil, fmt.Errorf("write the layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("compress the layer: %w", err)
	}
	return layer, nil
}

func writeAll(w io.Writer, content []byte) error {
	_, err := w.Write(content)
	return err
}

// describe writes the SBOM of the image: that of the program, extended by the authorities.
func (b build) describe(architecture string) error {
	text, err := os.ReadFile(filepath.Join(b.dist, fmt.Sprintf("drainer_%s_linux_%s.cdx.json", b.version, architecture)))
	if err != nil {
		return err
	}
	var sbom map[string]any
	if err := json.Unmarshal(text, &sbom); err != nil {
		return fmt.Errorf("the program's SBOM: %w", err)
	}
	metadata, _ := sbom["metadata"].(map[string]any)
	components, _ := sbom["components"].([]any)
	if metadata == nil || components == nil {
		return errors.New("the program's SBOM names no component")
	}
	if program, is := metadata["component"].(map[string]any); is {
		components = append(components, program)
	}
	metadata["component"] = map[string]any{"type": "container", "name": "drainer", "version": b.version, "bom-ref": "image"}
	sbom["components"] = append(components, map[string]any{
		"type": "data", "name": "ca-certificates.crt", "bom-ref": "authorities",
		"hashes": []any{map[string]any{"alg": "SHA-256", "content": fmt.Sprintf("%x", sha256.Sum256(b.authorities))}},
	})
	if text, err = json.MarshalIndent(sbom, "", "  "); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return b.publish(fmt.Sprintf("drainer_%s_image_%s.cdx.json", b.version, architecture), append(text, '\n'))
}

// write packs the layout into one file, in the order of the file names.
func (b build) write(index v1.ImageIndex) error {
	folder, err := os.MkdirTemp("", "drainer-image-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(folder)
	if _, err := layout.Write(folder, index); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	var packed bytes.Buffer
	files := tar.NewWriter(&packed)
	err = filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(inside), Mode: 0o644, Size: int64(len(content)), ModTime: b.created}
		return errors.Join(files.WriteHeader(header), writeAll(files, content))
	})
	if err := errors.Join(err, files.Close()); err != nil {
		return fmt.Errorf("pack the layout: %w", err)
	}
	return b.publish(fmt.Sprintf("drainer_%s_image.tar", b.version), packed.Bytes())
}

// publish writes a file into dist, and adds its checksum to the list of checksums.
func (b build) publish(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(b.dist, name), content, 0o644); err != nil { //nolint:gosec // it is published
		return err
	}
	sums, err := os.OpenFile(filepath.Join(b.dist, "checksums.txt"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(sums, "%x  %s\n", sha256.Sum256(content), name)
	return errors.Join(err, sums.Close())
}
