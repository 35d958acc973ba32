// An HTTP origin with Go's net/http: `origin ADDRESS`, with `h2` behind it: HTTP/2 by prior knowledge, with `CERT KEY`: TLS. clients.rs lists its paths and answers.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

var output sync.Mutex

// report writes the parsed request to standard output and sends it to the client.
func report(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	said, _ := json.Marshal([]string{r.Method, r.RequestURI, string(body)})
	output.Lock()
	if err == nil {
		fmt.Println(string(said))
	} else {
		fmt.Println("broken", r.RequestURI, err)
	}
	output.Unlock()
	w.Header().Set("X-Origin", "yes")
	w.Write(said)
}

func echo(w http.ResponseWriter) {
	stream, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer stream.Close()
	io.WriteString(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
	io.Copy(stream, buffered)
}

func answer(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	if size, err := strconv.Atoi(path); err == nil {
		w.Header().Set("Content-Length", path)
		if size != 204 && size != 304 {
			io.WriteString(w, strings.Repeat("x", size))
		} else {
			w.Header().Del("Content-Length")
			w.WriteHeader(size)
		}
		return
	}
	switch path {
	case "chunked":
		w.Header().Set("Trailer", "X-Sum")
		for _, piece := range []string{"one", "two", "three"} {
			io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
		w.Header().Set("X-Sum", "11")
	case "digest":
		digest := sha256.New()
		io.Copy(digest, r.Body)
		w.Header().Set("X-Sum-Was", r.Trailer.Get("X-Sum"))
		fmt.Fprintf(w, "%x", digest.Sum(nil))
	case "refuse":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case "protocol":
		io.WriteString(w, r.Proto)
	case "echo":
		echo(w)
	default:
		report(w, r)
	}
}

func main() {
	server := &http.Server{Addr: os.Args[1], Handler: http.HandlerFunc(answer)}
	switch len(os.Args) {
	case 2:
		fmt.Println(server.ListenAndServe())
	case 3: // HTTP/2 by prior knowledge, beside HTTP/1.1
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
		fmt.Println(server.ListenAndServe())
	default:
		fmt.Println(server.ListenAndServeTLS(os.Args[2], os.Args[3]))
	}
}
