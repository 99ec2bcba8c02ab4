package console_test

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
)

// contrast lists texts that stand out too little from what is behind them.
//
//go:embed testdata/contrast.js
var contrast string

func TestEveryPageFitsAndIsReadable(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/")
	check := func(path string) {
		for _, width := range []int64{360, 1440} {
			v.do(chromedp.EmulateViewport(width, 900))
			if wide := evaluate[int64](v, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("%s needs %d pixels at a width of %d", path, wide, width)
			}
		}
		for _, scheme := range []string{"light", "dark"} {
			v.prefers(scheme)
			if faint := evaluate[[]string](v, contrast); len(faint) > 0 {
				t.Errorf("%s is hard to read in %s colours:\n%s", path, scheme, strings.Join(faint, "\n"))
			}
		}
	}
	v.open("/login")
	check("/login")
	v.onEveryPage(check)
	evaluate[bool](v, `document.querySelector("h1").style.color = "#888", document.body.style.background = "#777", true`)
	if faint := evaluate[[]string](v, contrast); len(faint) == 0 {
		t.Error("grey on grey is called readable")
	}
}

// needsName are the roles of what a person uses, or hears of.
var needsName = map[string]bool{
	"link": true, "button": true, "textbox": true, "searchbox": true, "combobox": true, "checkbox": true, "image": true,
	"RootWebArea": true, "columnheader": true, "rowheader": true, "dialog": true, "option": true,
}

func TestAScreenReaderHearsNamesHeadingsAndPlaces(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/")
	v.onEveryPage(func(path string) {
		heard := map[string]int{}
		level := 0
		for _, node := range v.hears() {
			role := spoken(node.Role)
			heard[role]++
			if needsName[role] && spoken(node.Name) == "" {
				t.Errorf("%s: %s has no name (%s)", path, role, node.NodeID)
			}
			if role != "heading" {
				continue
			}
			for _, property := range node.Properties {
				if property.Name != "level" {
					continue
				}
				next, err := strconv.Atoi(spoken(property.Value))
				if err != nil || next > level+1 || (level == 0) != (next == 1) {
					t.Errorf("%s: the heading %q has level %s after %d", path, spoken(node.Name), spoken(property.Value), level)
				}
				level = next
			}
		}
		for _, place := range []string{"main", "navigation", "banner", "contentinfo", "search"} {
			if heard[place] != 1 {
				t.Errorf("%s has %d of %s", path, heard[place], place)
			}
		}
	})
}

func (v *visitor) hears() []*accessibility.Node {
	v.t.Helper()
	tree, err := chromedp.Call(v.window, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		v.t.Fatal(err)
	}
	var heard []*accessibility.Node
	for _, node := range tree.Nodes {
		if !node.Ignored {
			heard = append(heard, node)
		}
	}
	if len(heard) < 10 {
		v.t.Fatalf("only %d things are heard", len(heard))
	}
	return heard
}

func spoken(value *accessibility.Value) string {
	if value == nil {
		return ""
	}
	return strings.Trim(string(value.Value), `"`)
}

// Tab leads through a page in the order in which it is read, and shows where it is.
func TestFocusFollowsTheOrderOfReading(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/")
	for _, path := range []string{"/", "/intents/10", "/providers"} {
		v.open(path)
		evaluate[bool](v, `window.stops = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select")].filter(e => e.checkVisibility()), true`)
		for stop := range evaluate[int](v, `stops.length`) {
			v.do(chromedp.KeyEvent("\t"))
			at := evaluate[string](v, fmt.Sprintf(`(() => {
				let at = document.activeElement;
				if (at !== stops[%d]) return "is " + at.outerHTML.slice(0, 80) + ", not " + stops[%[1]d].outerHTML.slice(0, 80);
				if (getComputedStyle(at).outlineStyle === "none") return at.outerHTML.slice(0, 80) + " is not seen";
				return "";
			})()`, stop))
			if at != "" {
				t.Fatalf("%s: stop %d %s", path, stop, at)
			}
		}
	}
}
