package exec_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// behaviours are the ways in which the test binary acts as a child. The name of
// one is in the variable BEHAVIOUR.
var behaviours = map[string]func(*peer){
	"echo":                   echo,
	"does as it is directed": beDirected,
	"environment": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"environment"}`)
		p.each(func(request map[string]any, _ string) {
			seen, _ := json.Marshal(os.Environ())
			p.complete(request, string(seen))
		})
	},
	"says what it is told": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"parrot"}`)
		p.each(func(request map[string]any, _ string) {
			p.say(strings.ReplaceAll(request["payload"].(string), "ID", request["id"].(string)))
		})
	},
	"says its hello, which is told": func(p *peer) {
		p.hello(os.Getenv("HELLO"))
		p.each(func(request map[string]any, line string) { p.complete(request, line) })
	},
	"in pairs, second first": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"pairs"}`)
		var first map[string]any
		p.each(func(request map[string]any, _ string) {
			if first == nil {
				first = request
				return
			}
			p.complete(request, toJSON(request["payload"]))
			p.complete(first, toJSON(first["payload"]))
			first = nil
		})
	},
	"holds an answer back until the next": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"late"}`)
		var held map[string]any
		p.each(func(request map[string]any, _ string) {
			if request["payload"] == "hold" {
				held = request
				return
			}
			if held != nil {
				p.complete(held, `"too late"`)
				held = nil
			}
			p.complete(request, fmt.Sprint(os.Getpid()))
		})
	},
	"answers the second twice": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"twice"}`)
		asked := 0
		p.each(func(request map[string]any, _ string) {
			if asked++; asked == 2 {
				p.complete(request, "1")
				p.complete(request, "2")
			}
		})
	},
	"dies at a request": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"mortal"}`)
		p.in.ReadString('\n')
		os.Exit(7)
	},
	"answers at length, then dies": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"mortal"}`)
		p.each(func(request map[string]any, _ string) {
			p.complete(request, toJSON(strings.Repeat("x", 60_000))) // so much fits into a pipe
			os.Exit(7)
		})
	},
	"dies, once": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"mortal"}`)
		p.each(func(request map[string]any, line string) {
			mark := os.Getenv("MARK")
			if _, err := os.Stat(mark); err != nil {
				os.WriteFile(mark, nil, 0o600)
				os.Exit(7)
			}
			p.complete(request, line)
		})
	},
	"writes half an answer and dies": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"mortal"}`)
		p.each(func(request map[string]any, _ string) {
			fmt.Fprintf(p.out, `{"id":%q,"outcome":"rejected"}`, request["id"]) // the newline is missing
			os.Exit(0)
		})
	},
	"writes without end": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"loud"}`)
		p.in.ReadString('\n')
		for block := []byte(strings.Repeat("x", 1<<20)); ; {
			if _, err := p.out.Write(block); err != nil {
				os.Exit(0)
			}
		}
	},
	"says nothing": func(p *peer) {
		io.Copy(io.Discard, p.in)
	},
	"hello, and reads no more": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"deaf"}`)
		select {}
	},
	"answers one, and reads no more": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"deaf"}`)
		p.each(func(request map[string]any, line string) {
			p.complete(request, line)
			select {}
		})
	},
	"hello, and closes its stdin": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"deaf"}`)
		os.Stdin.Close()
		select {}
	},
	// It completes requests with the payload true, with the number of the other requests that it has left
	// unanswered.
	"answers only some": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"choosy"}`)
		unanswered := 0
		p.each(func(request map[string]any, _ string) {
			if request["payload"] == true {
				p.complete(request, fmt.Sprint(unanswered))
				return
			}
			unanswered++
		})
	},
	"exits": func(*peer) { os.Exit(3) },
	"complains, then exits": func(*peer) {
		fmt.Fprintf(os.Stderr, "Traceback:\n\x1b[31mKeyError: token=%s %s\n\n", os.Getenv("TOKEN"), os.Getenv("PAD"))
		os.Exit(3)
	},
	"says one line of a key": func(p *peer) {
		fmt.Fprint(os.Stderr, "no key\n", strings.Split(os.Getenv("TOKEN"), "\n")[1], "\n")
		p.hello("hello\t" + os.Getenv("PAD"))
		p.in.ReadString('\n')
	},
	"complains and dies at a request": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"mortal"}`)
		p.in.ReadString('\n')
		fmt.Fprintf(os.Stderr, "panic: lost %s\n", os.Getenv("TOKEN"))
		syscall.Kill(os.Getpid(), syscall.Signal(atoi(os.Getenv("SIGNAL"))))
		select {}
	},
	"will not leave": func(p *peer) {
		signal.Ignore(syscall.SIGTERM)
		p.hello(`{"protocol":[1],"name":"clinging"}`)
		p.each(func(request map[string]any, line string) { p.complete(request, line) })
		select {}
	},
	"is connected": func(p *peer) {
		conn, err := net.Dial("tcp", os.Getenv("ADDRESS"))
		if err != nil {
			os.Exit(4)
		}
		defer conn.Close()
		echo(p)
		select {} // the end of stdin does not end it
	},
	"complains": func(p *peer) {
		p.hello(`{"protocol":[1],"name":"complaining"}`)
		p.each(func(request map[string]any, line string) {
			fmt.Fprintf(os.Stderr, "first\x1b[31m\n%s\nlast\n", strings.Repeat("x", 1<<20))
			p.complete(request, line)
		})
	},
}

func echo(p *peer) {
	p.hello(`{"protocol":[1],"name":"echo"}`)
	p.each(func(request map[string]any, line string) { p.complete(request, line) })
}

// peer is the child's side of the conversation.
type peer struct {
	in  *bufio.Reader
	out io.Writer
}

func (p *peer) say(line string) { fmt.Fprintln(p.out, line) }

func (p *peer) hello(line string) {
	if greeting, err := p.in.ReadString('\n'); err != nil || greeting != `{"protocol":[1],"name":"drainer"}`+"\n" {
		os.Exit(5)
	}
	p.say(line)
}

func (p *peer) each(do func(request map[string]any, line string)) {
	for {
		line, err := p.in.ReadString('\n')
		if err != nil {
			return
		}
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.UseNumber()
		var request map[string]any
		if decoder.Decode(&request) != nil {
			os.Exit(6)
		}
		do(request, line)
	}
}

func (p *peer) complete(request map[string]any, response string) {
	p.say(fmt.Sprintf(`{"id":%q,"outcome":"completed","response":%s}`, request["id"], strings.TrimSpace(response)))
}

func toJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

func atoi(text string) int {
	number, err := strconv.Atoi(text)
	if err != nil {
		os.Exit(9)
	}
	return number
}
