// The compiled part of Asio and Beast, in one place: every other file includes declarations.

#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
