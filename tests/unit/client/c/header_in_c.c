/* The header is C: this compiles as C99 and calls through it. */
#include <string.h>

#include "client/c/epd_client.h"

const char* VersionFromC(void);
int ConnectFromC(const char* path, char* message, size_t bytes);

const char* VersionFromC(void) { return epd_client_version(); }

int ConnectFromC(const char* path, char* message, size_t bytes) {
  epd_error error = {sizeof error, 0, {0}};
  epd_connect_args args = {sizeof args, 0, 0, 0, 0, 0};
  epd_client* client = NULL;
  int code;
  args.socket_path = path;
  code = epd_connect(&args, &client, &error);
  strncpy(message, error.message, bytes - 1);
  epd_disconnect(client);
  return code;
}
