"""Tries every way out of a sandbox and prints what became of each, as JSON."""

import errno, json, os, socket, struct, subprocess, sys, time

TIMEOUT = 20


def outcome(work):
    start = time.monotonic()
    try:
        result = work()
    except TimeoutError:
        return "timeout"
    except OSError as error:
        result = errno.errorcode.get(error.errno, str(error))
    except Exception as error:
        result = repr(error)
    # What is refused is refused at once.
    return "slow " + str(result) if time.monotonic() - start > 10 else result


def talk(address, message, half_close=True):
    with socket.create_connection(address, TIMEOUT) as connection:
        connection.sendall(message)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(4096):
            answer += part
        return answer.decode()


def request(port, target):
    return talk(("127.0.0.1", port), f"{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), False)


def question(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return b"\x12\x34\x01\0\0\1\0\0\0\0\0\0" + labels + b"\0" + struct.pack(">HH", kind, 1)


def address_in(answer, asked):
    if answer[:2] != asked[:2]:
        return "another answer"
    if answer[3] & 15:
        return f"rcode {answer[3] & 15}"
    if answer[6:8] == b"\0\0":
        return "nothing"
    data = answer[len(asked) + 12:]
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def resolve(name, kind=1, server="127.0.0.1", tcp=False):
    asked = question(name, kind)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    if tcp:
        with socket.create_connection((server, 53), TIMEOUT) as connection:
            connection.sendall(struct.pack(">H", len(asked)) + asked)
            connection.recv(2, socket.MSG_WAITALL)
            return address_in(connection.recv(4096), asked)
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(TIMEOUT)
        asking.connect((server, 53))
        asking.send(asked)
        return address_in(asking.recv(4096), asked)


def datagrams(address):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sending:
        sending.settimeout(TIMEOUT)
        said = []
        for word in (b"one", b"two", b"x" * 20000):
            sending.sendto(word, address)
            answer, source = sending.recvfrom(65535)
            assert source[:2] == address, source
            said.append(answer.decode() if len(answer) < 100 else len(answer))
        return said


def raw(family, protocol, address):
    with socket.socket(family, socket.SOCK_RAW, protocol) as sending:
        sending.sendto(b"\x08\0\xf7\xff\0\0\0\0", (address, 0))
        return "sent"


def by_name(name, kind, port):
    return talk((resolve(name, kind), port), b"hello")


results = {
    "named": outcome(lambda: request(8788, "GET /model/v1")),
    "proxy": outcome(lambda: request(8789, "CONNECT example.test:443")),
    "tcp4": outcome(lambda: talk(("93.184.216.34", 443), b"hello")),
    "tcp6": outcome(lambda: talk(("2001:db8::5", 8443), b"hello")),
    "mapped": outcome(lambda: talk(("::ffff:1.2.3.4", 80), b"hello")),
    "refused": outcome(lambda: talk(("10.0.0.1", 80), b"hello", False)),
    "name4": outcome(lambda: by_name("Good.test", 1, 443)),
    "name6": outcome(lambda: by_name("good.test", 28, 444)),
    "same": outcome(lambda: resolve("good.test") == resolve("GOOD.test")),
    "unlisted": outcome(lambda: resolve("no.test")),
    "elsewhere": outcome(lambda: resolve("good.test", server="8.8.8.8")),
    "elsewhere6": outcome(lambda: resolve("good.test", server="2001:4860:4860::8888")),
    "elsewhere_tcp": outcome(lambda: resolve("good.test", server="8.8.8.8", tcp=True)),
    "text": outcome(lambda: resolve("good.test", 16)),
    "udp4": outcome(lambda: datagrams(("9.9.9.9", 4433))),
    "udp6": outcome(lambda: datagrams(("2001:db8::9", 4433))),
    "raw_udp": outcome(lambda: raw(socket.AF_INET, 136, "8.8.8.8")),
    "icmp": outcome(lambda: raw(socket.AF_INET, socket.IPPROTO_ICMP, "8.8.8.8")),
    "icmp6": outcome(lambda: raw(socket.AF_INET6, socket.IPPROTO_ICMPV6, "2001:db8::9")),
    "local": outcome(lambda: talk(("127.0.0.1", 4), b"")),
    "local6": outcome(lambda: talk(("::1", 4), b"")),
    "broadcast": outcome(lambda: talk(("255.255.255.255", 80), b"")),
    "multicast": outcome(lambda: datagrams(("224.0.0.251", 5353))),
    "devices": sorted(os.listdir("/sys/class/net")),
    "resolv": open("/etc/resolv.conf").read().split("\n")[1:-1],
    "proxy_variable": os.environ.get("https_proxy"),
}
print(json.dumps(results))
