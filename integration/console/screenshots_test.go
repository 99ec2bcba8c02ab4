package console_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "write the documentation's pictures again")

// pictures of the documentation; `make screenshots` takes them.
var pictures = []struct {
	name, path, scheme string
	width, height      int64
}{
	{"now", "/", "light", 1100, 760},
	{"provider", "/providers/mail", "light", 1100, 760},
	{"run", order, "light", 1100, 640},
	{"run-dark", order, "dark", 1100, 640},
	{"telephone", "/intents/2", "light", 390, 780},
}

func TestThePicturesAreThere(t *testing.T) {
	const folder = "../../docs/console"
	if *update {
		v := newVisitor(t)
		v.login(aliceToken, "/")
		for _, picture := range pictures {
			v.prefers(picture.scheme)
			v.do(chromedp.EmulateViewport(picture.width, picture.height))
			v.open(picture.path)
			v.photograph(filepath.Join(folder, picture.name+".png"))
		}
	}
	text, err := os.ReadFile("../../docs/console.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, picture := range pictures {
		file, err := os.Stat(filepath.Join(folder, picture.name+".png"))
		if err != nil || file.Size() > 150_000 {
			t.Errorf("%s is no picture below 150 kB (%v); run make screenshots", picture.name, err)
		}
		if !strings.Contains(string(text), "console/"+picture.name+".png") {
			t.Errorf("docs/console.md does not show %s.png", picture.name)
		}
	}
}

func (v *visitor) photograph(file string) {
	v.t.Helper()
	shot, err := chromedp.Call(v.window, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng})
	if err != nil {
		v.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(file, shot.Data, 0o644); err != nil {
		v.t.Fatal(err)
	}
}
