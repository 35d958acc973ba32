// Tells who connects: "ADDRESS PORT", by HTTP on port 80 and as text on port 53/udp. For an image with musl.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listens(int type, int port) {
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int on = 1, listener = socket(AF_INET6, type, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || (type == SOCK_STREAM && listen(listener, 512)))
		perror("bind"), _exit(1);
	return listener;
}

static int words(char *into, size_t size, const struct sockaddr_in6 *peer) {
	char address[INET6_ADDRSTRLEN];

	inet_ntop(AF_INET6, &peer->sin6_addr, address, sizeof address);
	return snprintf(into, size, "%s %d\n", strncmp(address, "::ffff:", 7) ? address : address + 7, ntohs(peer->sin6_port));
}

int main(void) {
	struct pollfd ready[2] = { { listens(SOCK_STREAM, 80), POLLIN }, { listens(SOCK_DGRAM, 53), POLLIN } };
	char request[2048], said[100], response[200];

	for (;;) {
		struct sockaddr_in6 peer;
		socklen_t size = sizeof peer;

		if (poll(ready, 2, -1) < 0)
			return 1;
		if (ready[1].revents && recvfrom(ready[1].fd, request, sizeof request, 0, (struct sockaddr *)&peer, &size) >= 0)
			sendto(ready[1].fd, said, words(said, sizeof said, &peer), 0, (struct sockaddr *)&peer, size);
		if (ready[0].revents) {
			int connection = accept(ready[0].fd, (struct sockaddr *)&peer, &size);

			// One at a time: a sender that is silent holds up the others.
			if (connection >= 0 && recv(connection, request, sizeof request, 0) > 0) {
				const char *status = strncmp(request, "GET ", 4) ? "400 Bad Request" : "200 OK";
				int length = snprintf(response, sizeof response, "HTTP/1.0 %s\r\n\r\n", status);

				length += words(response + length, sizeof response - length, &peer);
				send(connection, response, length, MSG_NOSIGNAL);
			}
			close(connection);
		}
	}
}
