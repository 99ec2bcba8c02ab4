package sidecar_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// A process beside the sidecar unlinks its socket and binds the path itself.
func TestASocketThatOthersCouldReplaceGetsNoToken(t *testing.T) {
	t.Parallel()
	folder := shortFolder(t, 0o777)
	path := newDesk().socketIn(t, folder, "a.sock")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var tokens atomic.Int64
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	thief := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			tokens.Add(1)
		}
		_, _ = io.WriteString(w, goodHello)
	})}
	go func() { _ = thief.Serve(listener) }()
	t.Cleanup(func() { thief.Close() })
	fault.Injected(t, 67, 1)
	dispatchtest.Expect(t, newAdapter(t, spec("unix://"+path, "token: t0k3n")).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "untrusted_socket")
	if got := tokens.Load(); got != 0 {
		t.Errorf("the token was sent %d times", got)
	}
}

func TestASocketIsTrustedByWhoOwnsItAndWhoCouldReplaceIt(t *testing.T) {
	t.Parallel()
	self := os.Geteuid()
	for name, test := range map[string]struct {
		mode     os.FileMode // of the folder
		settings string
		change   func(folder, path string) error
		needRoot bool
		trusted  bool
	}{
		"in a folder of its own":                  {mode: 0o700, trusted: true},
		"others may look":                         {mode: 0o755, trusted: true},
		"its group may replace it":                {mode: 0o770},
		"all may replace it":                      {mode: 0o777},
		"only its owner may replace it":           {mode: 0o777 | os.ModeSticky, trusted: true},
		"the user that was configured":            {mode: 0o700, settings: fmt.Sprintf("user: %d", self), trusted: true},
		"another user than was configured":        {mode: 0o700, settings: fmt.Sprintf("user: %d", self+1)},
		"the file is another user's than listens": {mode: 0o700, needRoot: true, change: func(_, path string) error { return os.Chown(path, 4711, -1) }},
		"file and folder are, and the listener not": {mode: 0o755, needRoot: true, change: func(folder, path string) error {
			if err := os.Chown(folder, 4711, -1); err != nil {
				return err
			}
			return os.Chown(path, 4711, -1)
		}},
		"its folder is another user's": {mode: 0o755, needRoot: true, change: func(folder, _ string) error { return os.Chown(folder, 4711, -1) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.needRoot && self != 0 {
				t.Skip("only root gives files away")
			}
			folder := shortFolder(t, test.mode)
			path := newDesk().socketIn(t, folder, "s")
			if test.change != nil {
				if err := test.change(folder, path); err != nil {
					t.Fatal(err)
				}
			}
			got := newAdapter(t, spec("unix://"+path, test.settings)).Dispatch(t.Context(), request(`{}`))
			if test.trusted {
				dispatchtest.Expect(t, got, dispatch.Completed, "")
			} else {
				dispatchtest.Expect(t, got, dispatch.NotSent, "untrusted_socket")
			}
		})
	}
}

func TestAParentFolderThatOthersMayWriteToIsNoBetter(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(shortFolder(t, 0o777), "own")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	path := newDesk().socketIn(t, folder, "s")
	dispatchtest.Expect(t, newAdapter(t, spec("unix://"+path, "")).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "untrusted_socket")
}

// Kubernetes makes the folder of an emptyDir writable to all. Only the containers that mount it can see it.
func TestAVolumeOfItsOwnMayBeWritableToAllUntilItHoldsASecondSocket(t *testing.T) {
	t.Parallel()
	folder := shortFolder(t, 0o700)
	if err := syscall.Mount("drainer-test", folder, "tmpfs", 0, "size=1m,mode=0777"); err != nil {
		t.Skip("no volume can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := newDesk().socketIn(t, folder, "a.sock")
	dispatchtest.Expect(t, newAdapter(t, spec("unix://"+path, "")).Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	newDesk().socketIn(t, folder, "b.sock")
	dispatchtest.Expect(t, newAdapter(t, spec("unix://"+path, "")).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "untrusted_socket")
}
